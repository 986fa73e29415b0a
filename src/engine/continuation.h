// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include "runtime/work.h"

namespace mcr {

/// Something in this process that still has collectives to issue for operations that were started: calls that a pass
/// holds, second phases. A library that admits one thread at a time would keep them from that while a blocking call
/// sits in it, and the other ranks from ever joining that call. So such a call first waits until nothing is pending.
/// This ends, because the other ranks have made the same calls before, on this group, and do the same.
class Continuation : public std::enable_shared_from_this<Continuation> {
 public:
  virtual ~Continuation() = default;
  /// Issues what it can, at once; never waits. From any thread.
  virtual void hurry() = 0;
  /// Hurries until nothing is pending; false if the time runs out first.
  bool settle(std::chrono::nanoseconds limit);

  static bool any() noexcept { return count_.load(std::memory_order_relaxed) != 0; }
  /// Waits until nothing is pending. Throws Timeout.
  static void finish(std::chrono::milliseconds limit, Interrupt interrupt);

 protected:
  /// It has something to issue from now on, or has no more. Told under the lock that guards it.
  void set_pending(bool pending);

 private:
  std::atomic<bool> pending_{false};
  static std::atomic<int> count_;  // not inline: modules with hidden symbols would have their own
};

}  // namespace mcr
