// SPDX-License-Identifier: Apache-2.0
// The process's memory for tensors that other processes of the host can map (mcr_dl.empty_shared).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/shared_memory.h"

namespace mcr {

/// One file for all such tensors, so that other processes need to map one file per process. Its size is a bound: the
/// system provides only the pages that are in use. Methods may be called from any thread.
class SharedHeap {
 public:
  /// Its bound in bytes; half of the machine's memory if it is not set.
  static constexpr const char* kVariable = "MCR_DL_SHM_TENSOR_BYTES";

  /// The heap of this process, made by the first call. Never destroyed, as tensors may be freed while the process ends.
  /// Throws Error if the system refuses the memory.
  static SharedHeap& instance();

  explicit SharedHeap(int64_t bytes);

  /// Memory that begins with a page, and with a huge page if it is as large and there is space for that. Throws Error
  /// if there is none.
  std::byte* allocate(int64_t bytes);
  /// Returns the memory to the system. In a forked process this does nothing: the memory is its parent's.
  void free(std::byte* memory) noexcept;

  bool contains(const std::byte* memory, int64_t bytes) const noexcept {
    return memory >= begin() && memory + bytes <= begin() + bytes_;
  }
  std::byte* begin() const noexcept { return memory_->at(0); }
  int64_t bytes() const noexcept { return bytes_; }
  const File& file() const noexcept { return file_; }

 private:
  int64_t take(int64_t length, int64_t alignment);
  void give_back(int64_t offset, int64_t length);

  const pid_t owner_;
  const int64_t bytes_;
  const File file_;
  const std::shared_ptr<Memory> memory_;
  std::mutex mutex_;                  // guards the members below
  std::map<int64_t, int64_t> free_;   // offset -> length
  std::map<int64_t, int64_t> taken_;  // offset -> length
};

}  // namespace mcr
