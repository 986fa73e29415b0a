// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "backends/shm/blocks.h"
#include "backends/shm/offers.h"
#include "backends/shm/peer_memory.h"
#include "backends/shm/pieces.h"

namespace mcr::shm {

/// Large all_to_alls, and all_gathers of two ranks: each rank offers its blocks, and the other ranks read them out of
/// its tensor, with one copy instead of two. Other operations are faster in pieces: with a root, ranks copy in and out
/// at the same time; and a block that several ranks read is copied into shared memory once. One thread at a time.
class Direct {
 public:
  /// The progress of a call.
  struct Position {
    std::optional<uint64_t> number;
    bool offered = false, taken = false;
    int next = 0;        // the rank to read next, counted from this one
    int64_t offset = 0;  // bytes of its block that have been read
  };

  Direct(Segment& segment, Pieces& pieces, Offers& offers, const PeerMemory& memory, int rank);

  /// Whether a call is made in this way. Equal on all ranks.
  bool takes(const Blocks& blocks) const {
    const bool read_once = blocks.parts() || size_ == 2;
    return read_once && memory_.readable() && !blocks.reduces() && !blocks.rooted() && blocks.longest() >= kLeast;
  }
  /// Makes progress without waiting. True once the call is complete. Sets `published` if other
  /// ranks may wait for this progress. Throws Error if the memory of another rank cannot be read, or the rank has
  /// withdrawn its offer.
  bool advance(const Blocks& blocks, Position& position, bool& published);

 private:
  static constexpr int64_t kLeast = 128 << 10;  // bytes of a block: a read has a system call, and waits at both ends
  static constexpr int64_t kChunk = 512 << 10;  // bytes of one read

  bool take(const Blocks& blocks, Position& position);
  bool read(const Blocks& blocks, Position& position, int peer);

  Pieces& pieces_;
  Offers& offers_;
  const PeerMemory& memory_;
  const int rank_, size_;
};

}  // namespace mcr::shm
