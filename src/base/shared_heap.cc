// SPDX-License-Identifier: Apache-2.0
#include "base/shared_heap.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "base/error.h"
#include "base/immortal.h"
#include "base/process.h"

namespace mcr {

namespace {

constexpr int64_t kHugePage = 2 << 20;

int64_t page() {
  static const int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

int64_t rounded(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

int64_t bound() {
  constexpr int64_t kMost = int64_t{1} << 62;  // more could not be rounded
  const int64_t half = std::max(sysconf(_SC_PHYS_PAGES) / 2, 1L) * page();
  const auto bytes = bytes_of_variable(SharedHeap::kVariable, half, "shm: ");
  if (bytes <= kMost) return bytes;
  throw Error(ErrorCode::InvalidArgument, "shm: " + std::string(SharedHeap::kVariable) + ": expected at most " +
                                              std::to_string(kMost) + " bytes, got " + std::to_string(bytes));
}

}  // namespace

SharedHeap& SharedHeap::instance() {
  static auto& heap = immortal<SharedHeap>(bound());
  return heap;
}

SharedHeap::SharedHeap(int64_t bytes)
    : owner_(getpid()),
      bytes_(rounded(bytes, page())),
      file_(Memory::make(bytes_, kVariable)),
      memory_(Memory::map(file_, bytes_, kVariable)),
      free_{{0, bytes_}} {
  memory_->leave_out_of_dumps();
}

// The first free range that is long enough; -1 if there is none. With the lock.
int64_t SharedHeap::take(int64_t length, int64_t alignment) {
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [begin, free] = *range;
    const auto offset = rounded(begin, alignment);
    if (offset + length > begin + free) continue;
    free_.erase(range);
    if (offset > begin) free_[begin] = offset - begin;
    if (offset + length < begin + free) free_[offset + length] = begin + free - offset - length;
    taken_[offset] = length;
    return offset;
  }
  return -1;
}

// With the lock.
void SharedHeap::give_back(int64_t offset, int64_t length) {
  auto next = free_.upper_bound(offset);
  if (next != free_.end() && next->first == offset + length) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  free_[offset] = length;
}

std::byte* SharedHeap::allocate(int64_t bytes) {
  if (getpid() != owner_) {
    throw Error(ErrorCode::InvalidArgument,
                "expected the process that called empty_shared() first, got a process forked from it");
  }
  int64_t offset = -1, length = 0;
  if (bytes <= bytes_) {  // more could not even be rounded
    length = rounded(std::max<int64_t>(bytes, 1), page());
    const std::lock_guard lock(mutex_);
    if (length >= kHugePage) offset = take(length, kHugePage);
    if (offset < 0) offset = take(length, page());
  }
  if (offset < 0) {
    throw Error(ErrorCode::Backend, "expected space for " + std::to_string(bytes) + " bytes in the " +
                                        std::to_string(bytes_) + " bytes for shared tensors, got less; " + kVariable +
                                        " sets a higher bound");
  }
  try {
    memory_->populate(offset, length);
  } catch (...) {
    free(memory_->at(offset));
    throw;
  }
  return memory_->at(offset);
}

void SharedHeap::free(std::byte* memory) noexcept {
  if (getpid() != owner_) return;
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(memory - begin());
  if (found == taken_.end()) return;
  const auto [offset, length] = *found;
  memory_->discard(offset, length);
  taken_.erase(found);
  give_back(offset, length);
}

}  // namespace mcr
