// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/deferred.h"
#include "engine/executor.h"
#include "engine/pass.h"

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

/// The passes behind a pass that uses a stream. Its calls go through these, whatever chain the group has meanwhile.
struct FuseRest {
  std::shared_ptr<const Chain> chain;  // null: there are none
  int64_t pass = 0;                    // grows with each pass; ranks give the numbers in one order
};

/// Calls of one kind may share a buffer. A flush issues the buffers with the lowest priority first.
struct FuseKind {
  int32_t priority;
  int64_t pass;
  std::string_view backend;
  int64_t number;
  auto operator<=>(const FuseKind&) const = default;
};

/// A held call.
struct FusePart : Deferred {
  FusePart(const Call& held, const Candidate& of, const FuseLimits& its, const FuseRest& rest,
           std::shared_ptr<void> owner);

  const Call call;      // its memory is kept by the call's Work
  Candidate candidate;  // in the shadow group; a copy, which keeps the communicator, until the call is no longer held
  const FuseLimits limits;
  const FuseKind kind;
  const std::shared_ptr<const Chain> chain;
  int64_t number = 0;                  // index of the call in its stream, from 1
  const std::shared_ptr<void> memory;  // owns the call's memory for later passes; null if there are none
  const std::chrono::steady_clock::time_point until = std::chrono::steady_clock::now() + limits.hold;
};

/// The held calls of the backends that share communicators, and how the ranks agree on the contents of a flush. T is
/// measured by a clock and wait() is called by the program, so no rank can tell from its own state what the others
/// would flush. So the ranks ask each other in rounds: a rank that wants a flush (a buffer is full, T has passed, a
/// thread waits) proposes the number of calls it has made since the last flush, in an all_reduce with MIN. All ranks
/// get the same number, and have made that many. These calls are flushed, in buffers that depend only on their sizes
/// and kinds. Calls are numbered in program order, which is equal on all ranks. Every rank that has made a call joins a
/// round when T has passed, at the latest, and no rank joins without a call that has not been flushed, so that each
/// round flushes something.
///
/// A round is a schedule: wait until a flush is due; issue the all_reduce; issue the flush. The executor issues round,
/// flush, round, flush, on communicators that have no other calls. A round has no time limit of its own: a held call
/// that reaches its limit ends alone, and the round goes on for the rank that comes late. Thread-safe; no lock is held
/// during a flush, which may run users' passes.
class FuseStream : public std::enable_shared_from_this<FuseStream> {
 public:
  explicit FuseStream(std::shared_ptr<Group> shadow) : shadow_(std::move(shadow)) {}
  FuseStream(const FuseStream&) = delete;
  FuseStream& operator=(const FuseStream&) = delete;
  /// Ends the running round: its calls are gone.
  ~FuseStream() { executor_->expedite(); }

  /// Adds a call; calls of one pass with equal candidates have equal limits. `memory` owns the call's memory for later
  /// passes and may be null. Throws if the ranks can no longer agree on flushes.
  std::shared_ptr<FusePart> join(const Call& call, const Candidate& candidate, const FuseLimits& limits,
                                 const FuseRest& rest, std::shared_ptr<void> memory);
  /// Whether this thread is in a flush of this stream, in a pass behind the one that uses it.
  bool flushes_here() const noexcept { return executor_->drives_here(); }
  /// Issues what is due and was agreed, as far as possible now. Never waits.
  void drive();
  /// Call when a thread waits for this call.
  void expedite(const FusePart& part);
  /// Call when a call has been abandoned.
  void abandoned();
  /// Call when a thread waits for all calls.
  void expedite();
  /// Flushes; false if calls are still held after the limit.
  bool synchronize(std::chrono::nanoseconds limit);
  FuseStatistics statistics() const;
  /// Whether the ranks can no longer agree on flushes.
  bool broken() const;
  /// Call when another pass begins to use the stream, at the same point in the order of calls on all ranks: numbers and
  /// statistics begin again. False if the ranks can no longer agree on flushes.
  bool renew();
  /// The rest of a pass that begins to use the stream: the passes that the shadow has now.
  FuseRest add_pass();

 private:
  using Clock = std::chrono::steady_clock;
  using Parts = std::vector<std::shared_ptr<FusePart>>;

  // Call with the mutex held:
  int64_t made() const { return flushed_ + static_cast<int64_t>(held_.size()); }
  bool due() const;
  bool all_abandoned() const;
  std::vector<Parts> take(int64_t agreed);
  std::shared_ptr<Run> make_round();

  // Call without the mutex:
  bool propose(bool expedited, int64_t& number);
  std::chrono::milliseconds longest_timeout() const;
  void flush(int64_t agreed);
  std::optional<Error> send(const Parts& parts);
  std::shared_ptr<Work> carry(const Parts& parts);
  void break_off(const Error& error);

  const std::shared_ptr<Group> shadow_;
  const std::shared_ptr<Executor> executor_ = std::make_shared<Executor>(true);
  mutable std::mutex mutex_;    // guards all members below
  std::shared_ptr<Run> round_;  // the running one; null if no call is held
  std::deque<std::shared_ptr<FusePart>> held_;
  std::map<FuseKind, int64_t> bytes_;                   // of held calls
  Clock::time_point until_ = Clock::time_point::max();  // the earliest of held calls
  int64_t passes_ = 0;                                  // that have used the stream
  int64_t flushed_ = 0;                                 // the number of calls that have left held_
  int64_t wanted_ = 0;                                  // calls up to this number are to be flushed now
  bool flushing_ = false;                               // calls have left held_, and may not have been issued
  std::optional<Error> broken_;                         // set: the ranks can no longer agree
  FuseStatistics statistics_;
};

}  // namespace mcr
