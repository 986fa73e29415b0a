// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/shm/layout.h"
#include "base/shared_memory.h"

namespace mcr::shm {

/// Copies memory of another process, or of this one (process_vm_readv). False: the process has ended. Throws Error if
/// the system refuses.
bool read_memory(pid_t process, const std::byte* from, std::byte* to, int64_t bytes);

/// The outcome of a read of memory that its rank may give up meanwhile.
enum class Reading { Done, Ended, GivenUp };

/// The heap of a rank's process (SharedHeap), mapped into this process.
struct Heap {
  const std::byte* begin = nullptr;  // its address in the rank's process
  std::shared_ptr<Memory> memory;
};

/// The memory of the other ranks' processes that this rank can read. Any thread.
class PeerMemory {
 public:
  /// `processes`: of the ranks; empty if some rank cannot read the memory of another. `heaps`: of the ranks; empty if
  /// some rank has not mapped the heap of another. Whether they are empty is equal on all ranks.
  PeerMemory(std::vector<pid_t> processes, std::vector<Heap> heaps);

  /// Whether all ranks can read all memory of each other.
  bool readable() const { return !processes_.empty(); }
  /// Whether the memory lies in this process's heap, and all ranks have mapped it.
  bool shared(const std::byte* memory, int64_t bytes) const;
  /// The memory at an address of the rank's process, if it lies in that process's heap; else null.
  const std::byte* find(int rank, const std::byte* address) const;
  /// Copies memory of a rank that is valid while the counter `given_up` has the value `before`: the rank changes it
  /// before the memory may be freed. Then the outcome is GivenUp, whatever was read. Ended: the process has ended.
  Reading read(int rank, const std::byte* from, std::byte* to, int64_t bytes, Counter& given_up, uint64_t before) const;

 private:
  const std::vector<pid_t> processes_;
  const std::vector<Heap> heaps_;
};

}  // namespace mcr::shm
