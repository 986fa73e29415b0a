// SPDX-License-Identifier: Apache-2.0
// Issues the motifs of an iteration's calls in the order of a plan (SYNDICATE, NSDI'23, section 4.4).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/executor.h"

namespace mcr {

class Progress;

/// The place of a motif in a plan's order. In round i it stands for the motif of iteration i + `ahead`.
struct PlanPlace {
  uint32_t call = 0;  // of an iteration
  uint32_t motif = 0;
  uint32_t ahead = 0;
};

/// A call whose motifs the enforcer issues. Each motif has a lane: communicators on which only motifs of that lane are
/// issued, always in the order of calls. So communicators match on all ranks whatever the order of a plan, and whenever
/// a rank leaves it: the plan decides when a motif is issued, not which ones meet.
struct PlannedCall {
  std::shared_ptr<Run> run;  // begun; all its Issues are late
  uint32_t call = 0;         // of an iteration
  int64_t iteration = 0;
  uint64_t order = 0;            // the number of the order that the two belong to; 0: none
  std::vector<uint32_t> lanes;   // of each motif
  Progress* progress = nullptr;  // polls often while motifs are to come; may be null
  /// Why the call's group can make no more calls; null while it can. May be empty. Called with a lock held.
  std::function<const std::string*()> lost;
  // For messages: the operation, its number in its group, and the group's name, which is never destroyed.
  Op op = Op::barrier;
  int64_t seq = 0;
  const std::string* group = nullptr;
};

struct EnforcerStatistics {
  int64_t calls = 0;
  int64_t issued = 0;                // motifs
  int64_t breaks = 0;                // of the order, as the program had not made the next call
  std::chrono::nanoseconds held{0};  // that issuing waited for the first motif in the order while others could go
  uint64_t digest = 0;               // of the motifs issued by the plan, in order: equal on ranks without breaks
};

/// Keeps one order over all groups and lanes of this process: the next motif of the plan is issued when its call has
/// been made and its predecessors are complete, and none before it. If a thread waits for a call while the next motif's
/// call has not been made, and may never be, all calls made so far are issued in program order; so they are if that
/// motif waits for its predecessors for a second, as it would forever if another rank had left the order before it. The
/// order ends if it waits for one call again and again. The calls of a group that has lost a rank end with an error,
/// and the order ends with them. Thread-safe; no lock is held while a task runs or a call is released.
class Enforcer final : public Driver {
 public:
  /// Lanes have numbers, unique in the process.
  uint32_t new_lane();

  /// Sets the order of the iterations from 0 on, whose calls are numbered below `calls`; an empty order is program
  /// order. Returns its number. Calls of earlier orders are issued in program order, also those that are submitted
  /// later. Neither this nor leave_out() issues anything, as the caller may hold a lock: it calls drive() after
  /// releasing it.
  uint64_t set_order(std::vector<PlanPlace> order, uint32_t calls);
  /// These calls are no longer made: the order goes on without them.
  void leave_out(const std::vector<uint32_t>& calls);

  void submit(PlannedCall call);
  void drive() override;
  std::string behind(const Run& run) const override;
  /// Names the motif that is issued next, for error messages; empty if none is pending.
  std::string first() const;
  /// A thread waits for what may depend on the calls made so far: the order breaks as if it waited for them.
  void expedite();
  /// Issues all calls made so far: by the order, as long as it goes on without another call, then in program order.
  /// False if the time runs out first.
  bool synchronize(std::chrono::nanoseconds limit);
  /// Whether motifs are to come; without a lock.
  bool pending() const noexcept { return pending_count_.load(std::memory_order_relaxed) != 0; }
  EnforcerStatistics statistics() const;
  /// By round, for the last ones: a digest of the motifs that were issued up to its end. As long as this process has
  /// kept the order; equal on ranks that have.
  std::map<int64_t, uint64_t> digests() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  struct Pending {
    PlannedCall call;
    int64_t number;
    uint64_t unissued;  // a bit for each motif
  };
  using Shared = std::shared_ptr<Pending>;
  struct Head {
    Shared call;  // null: it has not been made
    uint32_t motif = 0;
  };

  // Call with the lock held; they release it while a task runs.
  bool step(Lock& lock);
  bool issue_next(Lock& lock);
  bool issue(Lock& lock, const Shared& call, uint32_t motif);
  bool flush(Lock& lock, int64_t to);

  static std::string described(const Pending& call);
  Shared next_to_issue() const;
  Shared pending_at(const PlanPlace& place) const;
  std::optional<Head> head();
  bool overtakes(const Head& head) const;
  bool past(const PlanPlace& place) const;
  void advance();
  bool breaks_order(const std::optional<Head>& head);
  std::chrono::nanoseconds patience() const;
  bool end_lost();
  void end_hold();
  void leave_order();
  void remove(const Shared& call);

  mutable std::mutex mutex_;  // guards all members below
  uint32_t lanes_ = 0;
  std::vector<PlanPlace> order_;
  uint64_t order_number_ = 0;   // of the orders so far
  std::vector<int64_t> made_;   // by call: the iteration that it will be made in next
  std::vector<bool> left_out_;  // by call
  int64_t round_ = 0;
  std::size_t next_ = 0;
  std::deque<Shared> calls_;  // with motifs to come, in program order
  std::vector<Shared> gone_;  // removed from there: drive() releases them at its end, without the lock
  std::map<std::pair<int64_t, uint32_t>, Shared> by_place_;
  int64_t numbered_ = 0;
  int64_t flush_to_ = 0;  // calls below this number are issued in program order
  bool driven_ = false;
  int synchronizing_ = 0;             // threads
  std::chrono::nanoseconds idle_{0};  // how long the order waits while no thread waits
  bool idled_ = false;                // it has waited so long in this round
  int missed_ = 0;                    // breaks in a row at a call that has not been made
  bool kept_ = false;                 // everything since the beginning of the order was issued by it
  std::map<int64_t, uint64_t> digests_;
  std::optional<Clock::time_point> held_since_;
  EnforcerStatistics statistics_;
  std::atomic<std::size_t> pending_count_{0};
};

}  // namespace mcr
