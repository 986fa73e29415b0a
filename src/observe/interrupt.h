// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace mcr {

/// Records Ctrl-C ahead of the program's own handler: Python acts on it only when its main thread returns from C, which
/// a hanging call never does.
class Interrupts {
 public:
  /// Installs the recorder ahead of the program's present handler; call it again to follow a program that installs
  /// another one. If the program ignores SIGINT or lets it end the process, nothing is installed. From one thread at a
  /// time.
  static void watch();
  /// The latest SIGINT, and the Activity::turn_of_main() at which it came.
  struct Latest {
    std::chrono::nanoseconds age;
    uint64_t turn;
  };
  /// Nothing if there was none.
  static std::optional<Latest> latest() noexcept;
};

}  // namespace mcr
