// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>

#include "base/error.h"

namespace mcr {

/// Ends communication in this process: from then on every call, and every wait that polls, fails with the given error.
/// For situations without recovery: ranks have made different calls, or the process was forked.
class Stop {
 public:
  static bool requested() noexcept { return requested_.load(std::memory_order_relaxed); }
  /// Whether this process was forked: it must not use the libraries' connections, which are its parent's.
  static bool forked() noexcept { return forked_.load(std::memory_order_relaxed); }
  /// The first request wins. From any thread.
  static void request(ErrorCode code, const std::string& text);
  /// Requests it for a process that was forked.
  static void note_fork(const std::string& text);
  /// Throws the error if one was requested.
  static void check() {
    if (requested()) [[unlikely]]
      raise();
  }
  /// The error's text; empty if none was requested.
  static std::string text();
  /// The error's text, for a call that throws it in another way; marks the error as thrown.
  static std::string take();
  /// The text of a desync that no call has thrown yet, marking it as thrown; empty if there is none.
  static std::string take_desync();
  /// Call before the runtime starts again.
  static void clear() noexcept {
    requested_.store(false, std::memory_order_relaxed);
    forked_.store(false, std::memory_order_relaxed);
  }

 private:
  [[noreturn]] static void raise();
  static std::atomic<bool> requested_, forked_;  // not inline: modules with hidden symbols would get a copy
};

}  // namespace mcr
