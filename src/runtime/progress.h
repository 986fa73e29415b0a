// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/work.h"

namespace mcr {

/// The host queue of one backend: a thread that advances started operations, at long intervals while a thread waits.
/// Each backend has its own, so that one library never delays another. Sleeps while there is nothing to do.
class Progress {
 public:
  Progress() = default;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { stop(); }

  /// Co-owns the Work until it is complete. The first call starts the thread. Throws Error if the system refuses it;
  /// the next call tries again.
  void watch(std::shared_ptr<Work> work);
  /// Releases a Work that is complete, if it is the oldest or the newest: a thread that started and waited leaves
  /// nothing to do for this one.
  void forget(const Work& work);
  /// While threads wait, they poll the library themselves, and this thread polls only at long intervals.
  void enter_wait() noexcept { waiting_.fetch_add(1, std::memory_order_relaxed); }
  void leave_wait() noexcept { waiting_.fetch_sub(1, std::memory_order_relaxed); }

  /// A thread sleeps until a watched Work is complete, and cannot poll: until leave_sleep(), this thread polls often,
  /// from now on.
  void enter_sleep();
  void leave_sleep() noexcept { sleeping_.fetch_sub(1, std::memory_order_relaxed); }
  /// Until poll_seldom(), this thread polls often, from the end of its present nap on: the caller goes on to wait, or
  /// has other work for the core.
  void poll_often() noexcept { frequent_.fetch_add(1, std::memory_order_relaxed); }
  void poll_seldom() noexcept { frequent_.fetch_sub(1, std::memory_order_relaxed); }

  /// Makes naps so many times longer than usual; the largest number so far counts.
  void set_patience(int factor) noexcept;

  /// At most `most` of the watched Works that are wanted (null: of all), oldest first. `wanted` must not call this
  /// object.
  std::vector<std::shared_ptr<Work>> watched(std::size_t most, const std::function<bool(Work&)>& wanted = nullptr);
  /// Polls until all watched Works have ended or the time has passed; true if none is left. Parts of other calls do not
  /// count. `interrupt` is called now and then, and may throw.
  bool drain(std::chrono::nanoseconds limit, Interrupt interrupt = nullptr);
  /// Ends the thread. Running operations are left to the threads that wait for them.
  void stop();

 private:
  void start_thread();
  void run(const std::stop_token& stop);
  std::chrono::microseconds nap_after(bool ended, std::chrono::microseconds before) const;
  std::shared_ptr<Work> running();
  bool sleep_while_idle(const std::stop_token& stop);
  bool sweep();

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<std::shared_ptr<Work>> works_;  // guarded by mutex_
  bool asleep_ = false;                      // guarded by mutex_
  bool woken_ = false;                       // since the latest nap; guarded by mutex_
  std::atomic<int> waiting_{0};
  std::atomic<int> sleeping_{0};  // threads in enter_sleep()
  std::atomic<int> frequent_{0};
  std::atomic<int> patience_{1};  // how many times longer than usual the naps are
  std::jthread thread_;           // last: joins before the other members are gone
};

}  // namespace mcr
