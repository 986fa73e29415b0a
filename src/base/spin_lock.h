// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <thread>

namespace mcr {

/// Holds a flag that guards a few memory accesses, for its lifetime. Threads that find it taken spin and then yield.
class SpinLock {
 public:
  explicit SpinLock(std::atomic_flag& flag) noexcept : flag_(flag) {
    for (int tries = 1; flag_.test_and_set(std::memory_order_acquire); ++tries) {
      if (tries % kTriesBeforeYield == 0) std::this_thread::yield();
    }
  }
  SpinLock(const SpinLock&) = delete;
  SpinLock& operator=(const SpinLock&) = delete;
  ~SpinLock() { flag_.clear(std::memory_order_release); }

 private:
  static constexpr int kTriesBeforeYield = 64;

  std::atomic_flag& flag_;
};

}  // namespace mcr
