// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "backends/shm/blocks.h"
#include "backends/shm/pieces.h"

namespace mcr::shm {

/// Copies memory of another process, or of this one (process_vm_readv). False: the process has ended. Throws Error if
/// the system refuses.
bool read_memory(pid_t process, const std::byte* from, std::byte* to, int64_t bytes);

/// The outcome of a read of memory that its rank may give up meanwhile.
enum class Reading { Done, Ended, GivenUp };

/// As read_memory(), of memory that is valid while the counter `given_up` has the value `before`: the rank changes it
/// before the memory may be freed. Then the outcome is GivenUp, whatever was read. Ended: the process has ended.
Reading read_offered(pid_t process, const std::byte* from, std::byte* to, int64_t bytes, Counter& given_up,
                     uint64_t before);

/// Large all_to_alls, and all_gathers of two ranks: each rank offers the addresses of its blocks, and the other ranks
/// read them out of its tensor, with one copy instead of two. The offer lies in a slot of the pieces. Other operations
/// are faster in pieces: with a root, ranks copy in and out at the same time; and a block that several ranks read is
/// copied into shared memory once. One thread at a time.
class Direct {
 public:
  /// The progress of a call.
  struct Position {
    std::optional<uint64_t> number;
    bool offered = false, taken = false;
    int next = 0;        // the rank to read next, counted from this one
    int64_t offset = 0;  // bytes of its block that have been read
  };

  /// `processes`: of the ranks; empty if some rank cannot read the memory of another. Equal on all ranks in that.
  Direct(Segment& segment, Pieces& pieces, int rank, std::vector<pid_t> processes);

  /// Whether a call is made in this way. Equal on all ranks.
  bool takes(const Blocks& blocks) const {
    const bool read_once = blocks.parts() || size_ == 2;
    return read_once && !processes_.empty() && !blocks.reduces() && !blocks.rooted() && blocks.longest() >= kLeast;
  }
  /// Makes progress without waiting. True once the call is complete. Sets `published` if other
  /// ranks may wait for this progress. Throws Error if the memory of another rank cannot be read, or the rank has
  /// withdrawn its offer.
  bool advance(const Blocks& blocks, Position& position, bool& published);
  /// The caller's memory is no longer valid: the other ranks' reads fail.
  void withdraw();

 private:
  static constexpr int64_t kLeast = 128 << 10;  // bytes of a block: a read has a system call, and waits at both ends
  static constexpr int64_t kChunk = 512 << 10;  // bytes of one read

  struct Offer {
    Counter withdrawn;
    const std::byte* blocks[1];  // by rank; as many as there are ranks
  };
  Offer& offer(int rank, uint64_t number);
  void make_offer(const Blocks& blocks, uint64_t number);
  bool take(const Blocks& blocks, Position& position);
  bool read(const Blocks& blocks, Position& position, int peer);

  Segment& segment_;
  Pieces& pieces_;
  const int rank_, size_;
  const std::vector<pid_t> processes_;
  Offer* open_ = nullptr;  // this rank's, while others may read
};

}  // namespace mcr::shm
