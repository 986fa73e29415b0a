// SPDX-License-Identifier: Apache-2.0
// How a rank waits for others without a system call where they are fast, and without a busy core where they are not.
#pragma once

#include <chrono>
#include <cstdint>

#include "backends/shm/segment.h"

namespace mcr::shm {

/// Tells the core that this is a loop that polls.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Any thread.
class Waiting {
 public:
  /// `cores`: that all ranks may run on together.
  Waiting(Segment& segment, int rank, int cores);

  /// Polls before a call is left to the thread that waits for it.
  int polls() const { return polls_; }
  /// How long a waiting thread polls before it sleeps.
  std::chrono::nanoseconds patience() const { return patience_; }

  /// Wakes the ranks that sleep. Call after counters have been written.
  void wake();
  /// Sleeps until a rank calls wake(), or until `limit`. `ready` is asked once more before, since a rank may have
  /// written its counters meanwhile.
  template <class Ready>
  void sleep(std::chrono::nanoseconds limit, const Ready& ready) {
    const auto rings = announce();
    if (!ready()) sleep(limit, rings);
    withdraw();
  }
  /// Wakes the threads of this rank.
  void wake_own();

 private:
  uint32_t announce();
  void withdraw();
  void sleep(std::chrono::nanoseconds limit, uint32_t rings);

  Segment& segment_;
  const int rank_, size_;
  int polls_;
  std::chrono::nanoseconds patience_;
};

}  // namespace mcr::shm
