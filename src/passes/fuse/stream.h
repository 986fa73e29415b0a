// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/agreement.h"
#include "engine/deferred.h"
#include "engine/pass.h"
#include "engine/pending.h"
#include "passes/fuse/layout.h"

namespace mcr {

/// When a buffer is flushed, for one backend: the paper's B and T, and which calls are small.
struct FuseLimits {
  int64_t buffer_bytes = 0;          // B
  std::chrono::nanoseconds hold{0};  // T, counted from the first call in the buffer
  int64_t largest_bytes = 0;         // larger calls are not held
};

struct FuseStatistics {
  int64_t calls = 0;    // held calls
  int64_t flushes = 0;  // collectives that carried them
  int64_t bytes = 0;
  uint64_t digest = 0;  // of the contents of each flush: equal on ranks that have flushed the same calls
};

/// The bytes that a call takes in a buffer: its larger side.
int64_t fuse_bytes(const Call& call);

/// Calls of one kind may share a buffer. A flush issues the buffers with the lowest priority first.
struct FuseKind {
  int32_t priority;
  int64_t number;
  auto operator<=>(const FuseKind&) const = default;
};

/// A held call.
struct FusePart : Deferred {
  FusePart(const Call& held, const Slot& of);

  const Call call;  // its memory is kept by the call's Work
  Slot slot;        // in the shadow group; a copy, which keeps the communicator even if the group removes it
  const FuseKind kind;
  int64_t number = 0;  // index of the call in its stream, from 1
  const std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
};

/// The held calls of one backend, and how the ranks agree on the contents of a flush. T is measured by a clock and
/// wait() is called by the program, so no rank can tell from its own state what the others would flush. So the ranks
/// ask each other: a rank that wants a flush (a buffer is full, T has passed, a thread waits) proposes the number of
/// calls it has made so far, in an all_reduce with MIN. All ranks get the same number, and have made all calls up to
/// it. These calls are flushed, in buffers that depend only on their sizes and kinds. Calls are numbered in program
/// order, which is equal on all ranks. Every rank that has made a call joins a round when T has passed, at the latest,
/// and no rank joins without a call that has not been flushed, so that each round flushes something. Rounds and fused
/// calls have their communicator to themselves: each rank issues round, flush, round, flush.
/// Thread-safe. One thread at a time, the driver, issues rounds and flushes, without a lock: they may run users'
/// passes.
class FuseStream : public PendingIssues {
 public:
  FuseStream(std::shared_ptr<Group> shadow, FuseLimits limits);

  /// Adds a call. Throws if the ranks can no longer agree on flushes.
  std::shared_ptr<FusePart> join(const Call& call, const Slot& slot);
  /// Proposes a flush if one is due, and flushes what was agreed, as far as possible now. Never waits; returns at once
  /// if another thread is the driver.
  void drive();
  /// Call when a thread waits for this call.
  void hurry(const FusePart& part);
  /// Call when a thread waits for all calls.
  void hurry() override;
  const FuseLimits& limits() const { return limits_; }
  FuseStatistics statistics() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Parts = std::vector<std::shared_ptr<FusePart>>;

  // Call with the mutex held:
  int64_t made() const { return flushed_ + static_cast<int64_t>(held_.size()); }
  bool due() const;
  std::vector<Parts> take(int64_t agreed);

  // Call as the driver, without the mutex:
  bool step();
  void flush(int64_t agreed);
  std::optional<Error> send(const Parts& parts);
  std::shared_ptr<Work> carry(const Parts& parts);
  void break_off(const Error& error);

  const std::shared_ptr<Group> shadow_;
  const FuseLimits limits_;
  FusePool pool_;
  Agreement agreement_;       // used only by the driver
  mutable std::mutex mutex_;  // guards all members below
  bool driven_ = false;       // a thread is the driver
  std::deque<std::shared_ptr<FusePart>> held_;
  std::map<FuseKind, int64_t> bytes_;  // of held calls
  int64_t flushed_ = 0;                // the number of calls that have left held_
  int64_t wanted_ = 0;                 // calls up to this number are to be flushed now
  std::optional<Error> broken_;        // set: the ranks can no longer agree
  FuseStatistics statistics_;
};

}  // namespace mcr
