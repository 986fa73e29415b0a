// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/work.h"

namespace mcr::python {

/// The runs of a completion hook for one call, or for the parts of one work. The work raises their first exception; if
/// no caller asks for it, sys.unraisablehook reports it. Shared by the work and its parts; from any thread.
class HookRuns {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  HookRuns(std::function<void()> hook, std::size_t runs) : hook_(std::move(hook)), left_(runs) {}
  HookRuns(const HookRuns&) = delete;
  HookRuns& operator=(const HookRuns&) = delete;
  ~HookRuns();

  void run(const std::string& call) noexcept;
  bool over() const;
  /// Waits until all runs are over, calling `interrupt` now and then if it is not null. False after the deadline.
  bool wait(Interrupt interrupt, std::optional<Deadline> deadline = std::nullopt) const;
  bool failed() const;
  /// Throws the first exception so far, as an Error.
  void rethrow() const;

 private:
  const std::function<void()> hook_;
  mutable std::mutex mutex_;  // guards all members below
  mutable std::condition_variable done_;
  std::size_t left_;
  std::optional<Error> failure_;
  mutable bool reported_ = false;
};

/// Runs the hook of a blocking call and throws its exception, for torch. A hook that only this rank has must not change
/// the form of its calls.
void run_hook(std::function<void()> hook, const std::string& call);

/// The runs of a group's hook that may not be over. Thread-safe.
class PendingHookRuns {
 public:
  /// Null if the hook is.
  std::shared_ptr<HookRuns> begin(std::function<void()> hook, std::size_t runs);
  /// Waits for the runs so far; false after the deadline.
  bool wait(Interrupt interrupt, HookRuns::Deadline deadline);

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<HookRuns>> all_;  // guarded by mutex_
};

}  // namespace mcr::python
