// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

#include "base/immortal.h"
#include "base/wait_queue.h"

namespace mcr::python {

/// Threads that complete futures and thus run the callbacks that torch and its users have attached. A callback may wait
/// for another operation's future, so the threads that complete operations must not run it, and there are always more
/// threads than waiting callbacks, as far as the system grants them.
class Completions {
 public:
  /// Starts the first thread. Throws Error if the system grants none. Call it before an operation's completion relies
  /// on run().
  static Completions& instance();

  /// Runs the action soon, in the order of the calls as long as no action waits. An exception in it is reported and not
  /// propagated.
  void run(std::function<void()> action);
  /// Waits until all actions have run or the time has passed; true if none is left, or there was none. Without the GIL.
  static bool drain(std::chrono::milliseconds limit);

 private:
  template <class T, class... Arguments>
  friend T& mcr::immortal(Arguments&&... arguments);
  Completions();
  void serve();

  std::mutex mutex_;
  WaitQueue wake_;
  std::condition_variable done_;
  std::deque<std::function<void()>> actions_;  // this and all below guarded by mutex_
  std::size_t idle_ = 0;
  std::size_t busy_ = 0;
};

}  // namespace mcr::python
