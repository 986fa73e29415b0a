// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace mcr::mpi {

/// A mutex for a lock that is nearly always free: taking and giving it back costs one locked instruction instead of the
/// two of std::mutex. A thread that finds it taken sleeps. unlock() may miss a thread that is about to sleep, so sleeps
/// are short.
class ThreadLock {
 public:
  void lock() {
    if (!try_lock()) [[unlikely]]
      wait();
  }
  bool try_lock() {
    return state_.load(std::memory_order_relaxed) == kFree &&
           state_.exchange(kTaken, std::memory_order_acquire) == kFree;
  }
  void unlock() {
    state_.store(kFree, std::memory_order_release);
    if (waiting_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      futex(FUTEX_WAKE_PRIVATE, 1, nullptr);
  }

 private:
  static constexpr uint32_t kFree = 0, kTaken = 1;

  void wait() {
    constexpr timespec kNap{0, 200'000};
    waiting_.fetch_add(1, std::memory_order_relaxed);
    while (!try_lock()) futex(FUTEX_WAIT_PRIVATE, kTaken, &kNap);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  void futex(int operation, uint32_t value, const timespec* limit) {
    ::syscall(SYS_futex, &state_, operation, value, limit, nullptr, 0);
  }

  std::atomic<uint32_t> state_{kFree};
  std::atomic<uint32_t> waiting_{0};
};

}  // namespace mcr::mpi
