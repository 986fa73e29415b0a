// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
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
#include "engine/continuation.h"
#include "engine/deferred.h"
#include "engine/pass.h"
#include "passes/fuse/layout.h"

namespace mcr {

/// When a buffer goes, for one backend: the paper's B and T, and which calls are small.
struct FuseLimits {
  int64_t buffer_bytes = 0;          // B
  std::chrono::nanoseconds hold{0};  // T, from the first call in the buffer on
  int64_t largest_bytes = 0;         // larger calls are not held
};

struct FuseStatistics {
  int64_t calls = 0;    // that were held
  int64_t flushes = 0;  // collectives that carried them
  int64_t bytes = 0;
  uint64_t digest = 0;  // of what was in each flush: equal on ranks that have flushed the same
};

/// What a call takes of a buffer, in bytes: its larger side.
int64_t fuse_bytes(const Call& call);

/// A held call.
struct FusePart : Deferred {
  FusePart(const Call& held, const Slot& of);

  const Call call;     // the Work of the call keeps its memory
  Slot slot;           // the shadow group's; a copy keeps its communicator, which the group may give up meanwhile
  const int64_t kind;  // calls with the same number may share a buffer
  int64_t number = 0;  // which call of its stream it is, from 1
  const std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
};

/// The held calls of one backend, and how the ranks agree on what is in a flush. T is a clock and wait() is the
/// program's, so no rank can know from its own state what the others would flush. So they ask each other: a rank that
/// wants a flush (a buffer is full, T is over, somebody waits) says how many calls it has made so far, in an all_reduce
/// with MIN. All ranks get the same number, and have made all calls up to it; these go, in buffers that follow from
/// their sizes and kinds alone. Calls are numbered in program order, which is the same on all ranks. Every rank that
/// has made a call joins at the latest when T is over, and none joins without a call that is new to the others' answer,
/// so that each round flushes something. Rounds and fused calls have their communicator to themselves: each rank issues
/// round, flush, round, flush.
/// Thread-safe. One thread at a time, the driver, issues rounds and flushes, without a lock: they may run users'
/// passes.
class FuseStream : public Continuation {
 public:
  FuseStream(std::shared_ptr<Group> shadow, FuseLimits limits);

  /// Takes a call in. Throws if the ranks cannot agree on flushes any more.
  std::shared_ptr<FusePart> join(const Call& call, const Slot& slot);
  /// Asks for a flush if one is due and flushes what was agreed on, as far as possible now. Never waits; returns at
  /// once if another thread is the driver.
  void drive();
  /// A thread waits for this call.
  void hurry(const FusePart& part);
  /// A thread waits for all calls.
  void hurry() override;
  const FuseLimits& limits() const { return limits_; }
  FuseStatistics statistics() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Parts = std::vector<std::shared_ptr<FusePart>>;

  // Called with the mutex held:
  int64_t made() const { return flushed_ + static_cast<int64_t>(held_.size()); }
  bool due() const;
  std::vector<Parts> take(int64_t agreed);

  // Called by the driver, without the mutex:
  bool step();
  void flush(int64_t agreed);
  std::optional<Error> send(const Parts& parts);
  std::shared_ptr<Work> carry(const Parts& parts);
  void break_off(const Error& error);

  const std::shared_ptr<Group> shadow_;
  const FuseLimits limits_;
  FusePool pool_;
  Agreement agreement_;       // the driver's
  mutable std::mutex mutex_;  // guards all below
  bool driven_ = false;       // some thread is the driver
  std::deque<std::shared_ptr<FusePart>> held_;
  std::map<int64_t, int64_t> bytes_;  // of those held, by kind
  int64_t flushed_ = 0;               // calls that have left held_
  int64_t wanted_ = 0;                // up to this call, all shall go now
  std::optional<Error> broken_;       // the ranks cannot agree any more
  FuseStatistics statistics_;
};

}  // namespace mcr
