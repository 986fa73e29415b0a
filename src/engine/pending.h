// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include "runtime/work.h"

namespace mcr {

/// An object that still has collectives to issue for operations that were started: calls that a pass holds, late Issues
/// of schedules. In a library that admits one thread at a time, a blocking call would keep them from being
/// issued, and then the other ranks would never join that call. So such a call first waits until nothing is pending.
/// This wait ends, because the other ranks have made these earlier calls of the group too, and also wait first.
class PendingIssues : public std::enable_shared_from_this<PendingIssues> {
 public:
  virtual ~PendingIssues() = default;
  /// Issues what it can now; never waits. From any thread.
  virtual void hurry() = 0;
  /// Calls hurry() until nothing is pending; false if the time runs out first.
  bool synchronize(std::chrono::nanoseconds limit);

  static bool any() noexcept { return count_.load(std::memory_order_relaxed) != 0; }
  /// Waits until nothing is pending. Throws Timeout.
  static void finish(std::chrono::milliseconds limit, Interrupt interrupt);

 protected:
  /// Says whether it has something to issue. Called under the lock that guards this state.
  void set_pending(bool pending);

 private:
  std::atomic<bool> pending_{false};
  static std::atomic<int> count_;  // not inline: modules with hidden symbols would get a copy
};

}  // namespace mcr
