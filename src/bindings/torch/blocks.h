// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "bindings/torch/work.h"

namespace mcr::python {

/// The blocks of calls between startCoalescing() and endCoalescing() of one group. Each thread has one at most, which
/// calls of other threads are not in.
class Blocks {
 public:
  using Parts = TorchWork::Parts;

  void begin() {
    const std::lock_guard lock(mutex_);
    blocks_[thread()] = {};
    count_ = blocks_.size();
  }

  /// The works of this thread's block; null outside of one, and after an error in it.
  Parts* current() {
    if (count_.load(std::memory_order_relaxed) == 0) return nullptr;  // this thread sees the blocks that it has begun
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(thread());
    return found == blocks_.end() || found->second.broken ? nullptr : &found->second.parts;
  }

  /// Ends this thread's block with an error, if it is in one: take() returns its works.
  bool break_off() {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(thread());
    return found != blocks_.end() && !std::exchange(found->second.broken, true);
  }

  /// The works of the block that this thread has begun, which ends; nothing if it has begun none.
  std::optional<Parts> take() {
    const std::lock_guard lock(mutex_);
    auto block = blocks_.extract(thread());
    count_ = blocks_.size();
    if (block.empty()) return std::nullopt;
    return std::move(block.mapped().parts);
  }

 private:
  struct Block {
    Parts parts;  // of its thread alone
    bool broken = false;
  };

  // A number that no other thread gets: the system gives a thread's identity to later threads.
  static uint64_t thread() {
    static std::atomic<uint64_t> threads{0};
    thread_local const uint64_t number = ++threads;
    return number;
  }

  std::mutex mutex_;
  std::map<uint64_t, Block> blocks_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace mcr::python
