// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/wait_queue.h"

namespace mcr {

/// How long the destruction of an operation waits for the library to release it.
inline constexpr std::chrono::seconds kGrace{1};

/// Threads that call wait() on works which otherwise make no progress or do not report it. Every job gets a thread at
/// once, because it may depend on a later job. Idle threads are reused.
class Waiters : public std::enable_shared_from_this<Waiters> {
 public:
  /// Starts a thread for the function; throws std::system_error if the system grants none.
  using Start = void (*)(std::function<void()>);
  explicit Waiters(Start start = [](std::function<void()> serve) { std::thread(std::move(serve)).detach(); })
      : start_(start) {}

  /// False: no thread is idle, and the system grants no other. The job is not kept then.
  bool run(std::function<void()> job) {
    std::lock_guard lock(mutex_);
    if (jobs_.size() >= idle_) {
      try {
        start_([self = shared_from_this()] { self->serve(); });
      } catch (const std::system_error&) {
        return false;
      }
      ++threads_;
    }
    jobs_.push_back(std::move(job));
    wake_.notify_one();
    return true;
  }

  /// Ends the threads. A thread that a library never returns is left behind.
  void stop() {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
    ended_.wait_for(lock, kGrace, [this] { return threads_ == 0; });
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      --idle_;
      if (jobs_.empty()) break;
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
    }
    --threads_;
    ended_.notify_all();
  }

  const Start start_;
  std::mutex mutex_;
  WaitQueue wake_;
  std::condition_variable ended_;
  std::deque<std::function<void()>> jobs_;
  std::size_t idle_ = 0, threads_ = 0;
  bool stopping_ = false;
};

}  // namespace mcr
