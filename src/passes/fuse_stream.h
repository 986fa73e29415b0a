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
  Call call;                      // its memory is kept by the Work of the call
  int64_t kind = 0;               // calls with the same number may share a buffer
  std::shared_ptr<Work> carrier;  // both written before `gone`
  std::optional<Error> failure;
  std::atomic<bool> gone{false};
};

/// The held calls of one backend, and how the ranks agree on what is in a flush. T is a clock and wait() is the
/// program's, so no rank can know from its own state what the others would flush. Rank 0 decides, and tells: each
/// fused collective follows a broadcast, on the same communicator, of which kind it is and up to which of the calls of
/// that kind (numbered in program order, which is the same on all ranks) it goes. The other ranks only ever flush what
/// a broadcast names, once they have made those calls themselves. Nothing else uses that communicator, so its order
/// is rank 0's on all ranks. A rank asks for the next broadcast while it holds calls, and rank 0 sends one for these
/// at most T after it has made them.
class FuseStream : public Continuation {
 public:
  FuseStream(std::shared_ptr<Group> shadow, const std::string& backend, FuseLimits limits);

  /// Takes a call in; rank 0 flushes a buffer that is full.
  std::shared_ptr<FusePart> join(const Call& call, Slot& slot);
  /// One step: rank 0 flushes what has waited for T, the others what rank 0 has announced. Returns at once.
  void drive();
  /// Somebody waits for this call.
  void hurry(const FusePart& part);
  /// Rank 0 flushes all, the others what it has announced.
  void hurry() override;
  /// Lets all go and waits until nothing is held; false if the time runs out first.
  bool settle(std::chrono::nanoseconds limit);
  const FuseLimits& limits() const { return limits_; }
  FuseStatistics statistics() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Kind {
    Slot* slot = nullptr;  // of the shadow group
    std::deque<std::shared_ptr<FusePart>> held;
    int64_t flushed = 0;  // calls of this kind that are gone
    int64_t bytes = 0;    // of those held
    Clock::time_point since;
  };
  // Which kind, and up to which of its calls.
  struct Announcement {
    int64_t kind, end;
  };

  bool leads() const { return shadow_->rank() == 0; }
  void announce(Kind& kind, int64_t number);
  void cut(Kind& kind, int64_t number);
  void cut_expired();
  void listen();
  void follow();
  void flush(Kind& kind, int64_t number, std::size_t count);
  std::shared_ptr<Work> carry(const std::vector<std::shared_ptr<FusePart>>& parts, Slot& slot);
  void break_off(const Error& error);
  std::pair<Call, Announcement*> announcement(Plan& plan) const;

  const std::shared_ptr<Group> shadow_;
  const std::string& backend_;
  const FuseLimits limits_;
  FusePool pool_;
  mutable std::mutex mutex_;  // guards all below
  std::map<int64_t, Kind> kinds_;
  int64_t held_ = 0;
  std::shared_ptr<Work> listening_;          // not on rank 0: the next broadcast
  const Announcement* announced_ = nullptr;  // its memory
  std::optional<Error> broken_;              // the broadcasts do not work any more
  FuseStatistics statistics_;
};

}  // namespace mcr
