// SPDX-License-Identifier: Apache-2.0
// What the threads of this process are inside of: for whoever looks for calls that do not end.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ops.h"

namespace mcr {

/// Marks the calling thread as being inside a call, for its lifetime. Costs a few stores; a thread that is inside of
/// one already stays marked with that. All pointers name what lives as long as the process.
class Activity {
 public:
  struct What {
    const std::string* label = nullptr;    // of the group
    const std::string* backend = nullptr;  // null: the choice is still to be made
    int64_t seq = 0;
    int64_t bytes = -1;
    std::chrono::milliseconds limit{0};
    Op op = Op::barrier;
    bool connects = false;  // makes communicators: `op` means nothing
    bool waits = false;     // for an asynchronous operation, and ends in time by itself
  };

  explicit Activity(const What& what) noexcept;
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;
  ~Activity();

  /// One thread's, as others see it. `turn` tells the thread's activities apart.
  struct Reading {
    uint64_t turn = 0;
    int64_t thread = 0;  // the system's number
    What what;
  };
  /// Of all threads that are inside of something.
  static std::vector<Reading> all();

 private:
  void* mark_;  // the thread's, if this is its outermost activity
};

}  // namespace mcr
