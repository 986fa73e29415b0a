// SPDX-License-Identifier: Apache-2.0
#include "base/scratch.h"

#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "base/immortal.h"

namespace mcr {

namespace {

constexpr int64_t kLeast = int64_t{1} << 16;     // the allocator caches smaller pieces itself
constexpr int64_t kMostKept = int64_t{1} << 28;  // bytes, over all cached pieces
constexpr int64_t kSlack = 8;                    // a piece may exceed the requested size by an eighth

struct Pool {
  std::mutex mutex;
  std::multimap<int64_t, std::unique_ptr<std::byte[]>> pieces;  // by size; guarded by mutex
  int64_t bytes = 0;                                            // over all pieces; guarded by mutex
};

// Never destroyed: operations may still end during process exit.
Pool& pool() {
  static auto& made = immortal<Pool>();
  return made;
}

}  // namespace

Scratch::Scratch(int64_t bytes) : bytes_(bytes) {
  if (bytes >= kLeast) {
    const std::lock_guard lock(pool().mutex);
    const auto least = pool().pieces.lower_bound(bytes);
    if (least != pool().pieces.end() && least->first <= bytes + bytes / kSlack) {
      // The latest of this size, which is the most likely to be in the core's caches.
      const auto found = std::prev(pool().pieces.upper_bound(least->first));
      bytes_ = found->first;
      memory_ = std::move(found->second);
      pool().bytes -= bytes_;
      pool().pieces.erase(found);
      return;
    }
  }
  memory_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
}

Scratch::Scratch(Scratch&& other) noexcept
    : bytes_(std::exchange(other.bytes_, 0)), memory_(std::move(other.memory_)) {}

Scratch& Scratch::operator=(Scratch&& other) noexcept {
  if (this == &other) return *this;
  give_up();
  bytes_ = std::exchange(other.bytes_, 0);
  memory_ = std::move(other.memory_);
  return *this;
}

Scratch::~Scratch() { give_up(); }

void Scratch::give_up() noexcept {
  if (memory_ == nullptr || bytes_ < kLeast) return;
  try {
    const std::lock_guard lock(pool().mutex);
    if (pool().bytes + bytes_ > kMostKept) return;
    pool().pieces.emplace(bytes_, std::move(memory_));
    pool().bytes += bytes_;
  } catch (...) {  // no memory for the list: this piece is freed
  }
}

}  // namespace mcr
