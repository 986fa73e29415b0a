// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/work.h"

namespace mcr {

/// The host queue of one backend: a thread that keeps the started operations moving while nobody waits for them. Each
/// backend has its own, so that one library never holds up another. Sleeps while there is nothing to do.
class Progress {
 public:
  Progress() = default;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { stop(); }

  /// Co-owns the Work until it is complete. The thread starts with the first.
  void watch(std::shared_ptr<Work> work);
  /// While threads wait, they poll the library themselves: this thread then only looks in at long intervals.
  void enter_wait() noexcept { waiting_.fetch_add(1, std::memory_order_relaxed); }
  void leave_wait() noexcept { waiting_.fetch_sub(1, std::memory_order_relaxed); }

  /// Somebody sleeps until a work that is watched is complete, and cannot poll: until relax(), this thread looks often.
  void hasten();
  /// The same from the end of its present nap on: the caller goes on to wait, or has other work for the core.
  void look_often() noexcept { hurried_.fetch_add(1, std::memory_order_relaxed); }
  void relax() noexcept { hurried_.fetch_sub(1, std::memory_order_relaxed); }

  /// For works whose device signals them: nobody is served by looking often, and looking costs the device's library.
  void set_patient() noexcept { patience_.store(20, std::memory_order_relaxed); }

  /// Those that are watched, oldest first, at most so many.
  std::vector<std::shared_ptr<Work>> watched(std::size_t most);
  /// Polls until everything watched is complete or the time has passed; true if nothing is left.
  bool drain(std::chrono::nanoseconds limit);
  /// Ends the thread. What is still running is left to whoever waits for it.
  void stop();

 private:
  void run(const std::stop_token& stop);
  std::chrono::microseconds nap_after(bool progress, std::chrono::microseconds before) const;
  bool sleep_while_idle(const std::stop_token& stop);
  bool sweep();

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<std::shared_ptr<Work>> works_;  // guarded by mutex_
  bool asleep_ = false;                      // guarded by mutex_
  bool hastened_ = false;                    // since the last nap; guarded by mutex_
  std::atomic<int> waiting_{0};
  std::atomic<int> hurried_{0};
  std::atomic<int> patience_{1};  // how many times longer than usual the naps are
  std::jthread thread_;           // last: joins before what it uses is gone
};

}  // namespace mcr
