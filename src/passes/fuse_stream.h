// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
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

#include "continuation.h"
#include "pass.h"
#include "passes/fuse_layout.h"

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
struct FusePart {
  Call call;  // its memory is kept by the Work of the call
  Slot* slot = nullptr;
  int64_t kind = 0;    // calls with the same number may share a buffer
  int64_t number = 0;  // which call of its stream it is, from 1
  std::chrono::steady_clock::time_point since;
  std::shared_ptr<Work> carrier;  // both written before `gone`
  std::optional<Error> failure;
  std::atomic<bool> gone{false};
};

/// The held calls of one backend, and how the ranks agree on what is in a flush. T is a clock and wait() is the
/// program's, so no rank can know from its own state what the others would flush. So they ask each other: a rank that
/// wants a flush (a buffer is full, T is over, somebody waits) says how many calls it has made so far, in an all_reduce
/// with MIN. All ranks get the same number, and have made all calls up to it; these go, in buffers that follow from
/// their sizes and kinds alone. Calls are numbered in program order, which is the same on all ranks. Every rank that
/// has made a call joins at the latest when T is over, and none joins without a call that is new to the others' answer,
/// so that each round flushes something. Rounds and fused calls have their communicator to themselves: each rank issues
/// round, flush, round, flush.
class FuseStream : public Continuation {
 public:
  FuseStream(std::shared_ptr<Group> shadow, const std::string& backend, FuseLimits limits);

  /// Takes a call in.
  std::shared_ptr<FusePart> join(const Call& call, Slot& slot);
  /// One step: asks for a flush if it is time, flushes what was agreed on. Returns at once.
  void drive();
  /// Somebody waits for this call.
  void hurry(const FusePart& part);
  /// Somebody waits for all.
  void hurry() override;
  const FuseLimits& limits() const { return limits_; }
  FuseStatistics statistics() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Parts = std::vector<std::shared_ptr<FusePart>>;

  int64_t made() const { return flushed_ + static_cast<int64_t>(held_.size()); }
  bool due() const;
  void step();
  void ask();
  void flush(int64_t count);
  void send(Parts parts);
  std::shared_ptr<Work> carry(const Parts& parts);
  void break_off(const Error& error);

  const std::shared_ptr<Group> shadow_;
  const std::string& backend_;
  const FuseLimits limits_;
  FusePool pool_;
  mutable std::mutex mutex_;  // guards all below
  std::deque<std::shared_ptr<FusePart>> held_;
  std::map<int64_t, int64_t> bytes_;  // of those held, by kind
  int64_t flushed_ = 0;               // calls that are gone
  int64_t wanted_ = 0;                // up to this call, all shall go now
  std::shared_ptr<Work> round_;       // the agreement that is under way
  const int64_t* answer_ = nullptr;   // its memory
  std::optional<Error> broken_;       // the ranks cannot agree any more
  FuseStatistics statistics_;
};

}  // namespace mcr
