// SPDX-License-Identifier: Apache-2.0
// How a rank waits for others: without a system call if they are fast, and without a busy core if they are not.
#pragma once

#include <chrono>
#include <cstdint>

#include "backends/shm/segment.h"

namespace mcr::shm {

/// Tells the processor that this is a polling loop.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Every method may be called from any thread.
class Waiting {
 public:
  /// `cores`: the number that all ranks together may run on. `remote_fences`: all ranks have called
  /// register_for_fences() with success.
  Waiting(Segment& segment, int rank, int cores, bool remote_fences);

  /// Lets other processes make this one's writes visible (membarrier). False: the system has no such call.
  static bool register_for_fences();

  /// The number of polls before a call is left to the thread that waits for it.
  int polls() const { return polls_; }
  /// Whether there are more ranks than cores.
  bool shares_cores() const { return shares_cores_; }
  /// How long a waiting thread polls before it sleeps.
  std::chrono::nanoseconds patience() const { return patience_; }

  /// Wakes the ranks that sleep. Call after counters have been written.
  void wake() {
    if (!remote_fences_) fence();
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (segment_.sleepers().load(std::memory_order_relaxed) != 0) wake_sleepers();
  }
  /// Sleeps until a rank calls wake(), or until `limit`. Calls `ready` once before it sleeps, since a rank may have
  /// written its counters in the meantime.
  template <class Ready>
  void sleep(std::chrono::nanoseconds limit, const Ready& ready) {
    const Announced announced(*this);
    if (!ready()) sleep(limit, announced.rings);
  }
  /// Wakes the threads of this rank.
  void wake_own();

 private:
  /// The thread counts as a sleeper, for the lifetime of the object: `ready` may throw.
  struct Announced {
    explicit Announced(Waiting& its) : waiting(its), rings(its.announce()) {}
    Announced(const Announced&) = delete;
    Announced& operator=(const Announced&) = delete;
    ~Announced() { waiting.withdraw(); }

    Waiting& waiting;
    const uint32_t rings;
  };

  void fence();
  void wake_sleepers();
  uint32_t announce();
  void withdraw();
  void sleep(std::chrono::nanoseconds limit, uint32_t rings);

  Segment& segment_;
  const int rank_, size_;
  const bool remote_fences_, shares_cores_;
  int polls_;
  std::chrono::nanoseconds patience_;
};

}  // namespace mcr::shm
