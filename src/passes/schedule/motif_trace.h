// SPDX-License-Identifier: Apache-2.0
// When the motifs of planned calls were issued and ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/work.h"

namespace mcr {

/// An operation that was issued for a motif; a motif of a tree may have several, its messages. Times are nanoseconds of
/// steady_clock.
struct TracedMotif {
  int64_t iteration = 0;
  uint32_t call = 0;    // of the iteration
  Op op = Op::barrier;  // the call's
  int64_t bytes = 0;    // the call's
  uint32_t motif = 0;
  const std::string* candidate = nullptr;  // owned by the registry, which is never destroyed
  int64_t issued = 0;
  int64_t ended = 0;  // 0: not yet
};

/// Keeps the operations of planned calls while it is on. Thread-safe.
class MotifTrace : public std::enable_shared_from_this<MotifTrace> {
 public:
  bool on() const noexcept { return on_.load(std::memory_order_relaxed); }
  /// Keeps the operations that are issued from now on; forgets all earlier ones.
  void begin();
  /// Returns the operations issued since begin(), in the order of issue, and keeps no more.
  std::vector<TracedMotif> end();
  /// Adds an operation, which ends with the Work.
  void follow(Work& work, const TracedMotif& motif);

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::vector<TracedMotif> motifs_;  // guarded by mutex_
  uint64_t turn_ = 0;                // calls of begin(); guarded by mutex_
};

}  // namespace mcr
