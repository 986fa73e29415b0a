// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace mcr::python {

/// Threads on which futures are completed, and so the callbacks run that torch and its users have attached to them.
/// A callback may wait for another operation's future, so this is not the work of the threads that complete operations,
/// and there are always more threads than callbacks that wait, as far as the system grants them.
class Completions {
 public:
  /// Starts the first thread: throws std::system_error where the system grants none. Call it before an operation's
  /// completion relies on run().
  static Completions& instance();

  /// Runs the action soon, in the order of the calls as far as no action waits. An exception in it is reported and goes
  /// no further.
  void run(std::function<void()> action);
  /// Waits until all of them have run or the time has passed; true if none is left. Without the GIL.
  bool drain(std::chrono::milliseconds limit);

 private:
  Completions();
  void serve();

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<std::function<void()>> actions_;  // the rest guarded by mutex_ too
  std::size_t idle_ = 0;
  std::size_t busy_ = 0;
};

}  // namespace mcr::python
