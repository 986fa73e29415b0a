// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>

#include "base/error.h"

namespace mcr {

/// Ends communication in this process: from then on every call fails with the error that was given, and so do waits
/// that poll. For what leaves no way to go on in order: ranks that have made different calls, a process that was
/// forked.
class Stop {
 public:
  static bool requested() noexcept { return requested_.load(std::memory_order_relaxed); }
  /// The first request counts. From any thread.
  static void request(ErrorCode code, const std::string& text);
  /// Throws the error if one was requested.
  static void check() {
    if (requested()) [[unlikely]]
      raise();
  }
  /// The error's text; empty if none was requested.
  static std::string text();
  /// The error's text for a call that throws it in another way.
  static std::string take();
  /// The text of a desync that no call has thrown yet, as take() does; empty if there is none.
  static std::string take_desync();
  /// Before the runtime starts anew.
  static void clear() noexcept { requested_.store(false, std::memory_order_relaxed); }

 private:
  [[noreturn]] static void raise();
  static std::atomic<bool> requested_;  // not inline: modules with hidden symbols would have their own
};

}  // namespace mcr
