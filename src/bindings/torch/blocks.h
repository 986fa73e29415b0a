// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/torch/thread_number.h"
#include "bindings/torch/work.h"

namespace mcr::python {

/// The blocks of calls between startCoalescing() and endCoalescing() of one group. Each thread has one at most, which
/// calls of other threads are not in. A block that an exception has left ends when its thread begins another one, or
/// with the next call of another thread once its own has ended.
class Blocks {
 public:
  using Parts = TorchWork::Parts;

  void begin() {
    std::vector<Block> left;  // their works are released without the lock
    const std::lock_guard lock(mutex_);
    remove_left(left);
    auto& block = blocks_[thread().number];
    left.push_back(std::move(block));
    block = {{}, false, thread().lives};
    count_ = blocks_.size();
  }

  /// The works of this thread's block; null outside of one, and after an error in it.
  Parts* current() {
    if (count_.load(std::memory_order_relaxed) == 0) return nullptr;  // this thread sees the blocks that it has begun
    std::vector<Block> left;
    const std::lock_guard lock(mutex_);
    remove_left(left);
    const auto found = blocks_.find(thread().number);
    return found == blocks_.end() || found->second.broken ? nullptr : &found->second.parts;
  }

  /// Ends this thread's block with an error, if it is in one: take() returns its works.
  bool break_off() {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(thread().number);
    return found != blocks_.end() && !std::exchange(found->second.broken, true);
  }

  /// The works of the block that this thread has begun, which ends; nothing if it has begun none.
  std::optional<Parts> take() {
    std::vector<Block> left;
    const std::lock_guard lock(mutex_);
    remove_left(left);
    auto block = blocks_.extract(thread().number);
    count_ = blocks_.size();
    if (block.empty()) return std::nullopt;
    return std::move(block.mapped().parts);
  }

 private:
  struct Block {
    Parts parts;  // of its thread alone
    bool broken = false;
    std::weak_ptr<void> lives;  // expires with its thread
  };

  struct Thread {
    uint64_t number;
    std::shared_ptr<void> lives = std::make_shared<char>();
  };
  static const Thread& thread() {
    thread_local const Thread own{thread_number()};
    return own;
  }

  // Moves out the blocks of threads that have ended. Call with the mutex held.
  void remove_left(std::vector<Block>& left) {
    for (auto block = blocks_.begin(); block != blocks_.end();) {
      const bool over = block->second.lives.expired();
      if (over) left.push_back(std::move(block->second));
      block = over ? blocks_.erase(block) : std::next(block);
    }
    count_ = blocks_.size();
  }

  std::mutex mutex_;
  std::map<uint64_t, Block> blocks_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace mcr::python
