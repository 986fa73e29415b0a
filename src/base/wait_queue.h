// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace mcr {

/// A condition variable for several waiting threads. glibc before 2.41 can lose a notify_one() of an ordinary one when
/// several threads wait (its bug 25847): an operation then waits for a thread that sleeps. Here each thread waits on a
/// condition variable of its own. Every method needs the same mutex to be held.
class WaitQueue {
 public:
  /// Wakes the thread that began to wait last.
  void notify_one() {
    if (waiting_.empty()) return;
    auto& waiter = *waiting_.back();
    waiting_.pop_back();
    waiter.woken = true;
    waiter.wake.notify_one();
  }
  void notify_all() {
    while (!waiting_.empty()) notify_one();
  }

  /// Waits until `condition()` holds, which is tested after each notification.
  template <class Condition>
  void wait(std::unique_lock<std::mutex>& lock, Condition condition) {
    while (!condition()) {
      Waiter self;
      waiting_.push_back(&self);
      self.wake.wait(lock, [&] { return self.woken; });
    }
  }
  /// Like wait(), but at most `limit`; returns whether the condition holds.
  template <class Condition>
  bool wait_for(std::unique_lock<std::mutex>& lock, std::chrono::nanoseconds limit, Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
      Waiter self;
      waiting_.push_back(&self);
      if (self.wake.wait_until(lock, deadline, [&] { return self.woken; })) continue;
      std::erase(waiting_, &self);
      return condition();
    }
    return true;
  }

 private:
  struct Waiter {
    std::condition_variable wake;
    bool woken = false;
  };

  std::vector<Waiter*> waiting_;
};

}  // namespace mcr
