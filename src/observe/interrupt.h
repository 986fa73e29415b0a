// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>

namespace mcr {

/// Notes Ctrl-C in front of the program's own handler: Python acts on it when its main thread comes back from C, which
/// a call that hangs never does.
class Interrupts {
 public:
  /// Puts the note in front of the handler that the program has now; call it again to follow a program that installs
  /// another one. A program that ignores SIGINT, or lets it end the process, is left alone. From one thread at a time.
  static void watch();
  /// The time since the latest SIGINT; none if there was none.
  static std::optional<std::chrono::nanoseconds> since() noexcept;
};

}  // namespace mcr
