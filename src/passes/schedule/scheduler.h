// SPDX-License-Identifier: Apache-2.0
// Runs the calls of a program by a plan that was made for its iterations (docs/syndicate.md).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/motifs.h"
#include "engine/pass.h"
#include "passes/schedule/enforcer.h"
#include "passes/schedule/iterations.h"
#include "passes/schedule/motif_trace.h"

namespace mcr {

/// How a plan does one call of a group. Without channels the call goes on as it is.
struct PlannedForm {
  uint64_t signature = 0;  // what the call must be
  uint32_t call = 0;       // its number in an iteration, over all groups
  MotifForm form;
  std::vector<std::string> channels;  // candidates, of each motif
  std::vector<uint32_t> lanes;        // indexes among the group's lanes, of each motif
};

/// The plans of all groups of this process, and where the program is in its iterations. A group follows its plan until
/// it makes a collective that the plan does not expect, or a program that marks its iterations marks others. That
/// depends on the group's collectives, and marks between them, alone, so its ranks do the same. Messages concern two
/// ranks, and go on as they are. Thread-safe, if the calls of one group come from one thread at a time.
class PlanControl {
 public:
  enum class Event : uint8_t {
    Found,      // iterations have been found; the number of calls of one
    Iteration,  // the iteration with this number begins
    Left,       // a group has left the plan, which expected the call with this number
  };
  /// Called on the program's thread, before the call that begins an iteration is counted, or before the unexpected one.
  /// No lock is held; it may make calls on other groups, set a plan that begins with the present call, and watch.
  using Handler = std::function<void(Event, int64_t)>;
  /// A call, as far as plans need to know it.
  struct What {
    uint64_t signature = 0;              // of what makes calls of different iterations equal
    const std::string* named = nullptr;  // the candidate that the program or a rule names; null: none
    bool fixed = false;                  // it must stay as it is
  };
  /// A call that was seen.
  struct Seen {
    std::string group;
    uint64_t signature;
    std::string named;  // empty: none
    bool fixed;
  };
  struct Turn {
    const PlannedForm* form = nullptr;  // null: the call is in no plan. Valid while `plan` is
    std::shared_ptr<const void> plan;
    int64_t iteration = 0;
    uint64_t order = 0;    // the enforcer's number of the plan's order
    int64_t marks = 0;     // of the program, before the group's call before this one
    std::size_t seen = 0;  // the call's number among those that are watched; 0: it is not counted
  };

  explicit PlanControl(Handler handler) : handler_(std::move(handler)) {}

  /// Looks for iterations from the next call on; in a handler, from the present one on.
  void watch();
  /// The program says that an iteration begins with the next call.
  void mark();
  /// Iterations of so many calls are found after so many repetitions.
  void demand(std::size_t calls, std::size_t repetitions);
  /// The newest calls, oldest first.
  std::vector<Seen> newest(std::size_t count) const;
  /// Sets the plans of groups, by name, from the present call on, which must begin an iteration, and the order of their
  /// motifs; other groups have none. `calls`: of an iteration.
  void set_plan(std::map<std::string, std::vector<PlannedForm>> plans, std::vector<PlanPlace> order, uint32_t calls);
  /// Takes the next turn of a group's plan. What the handler throws leaves the call uncounted, and, if it has set no
  /// plan, iterations to be found.
  Turn enter(const std::string& group, const What& what);
  /// Takes back the group's latest turn, whose call has failed before anything was sent, perhaps only on this rank: it
  /// is not counted among the calls that are watched, either, unless another thread's call has been counted since.
  void give_back(const std::string& group, const Turn& turn);
  const std::shared_ptr<Enforcer>& enforcer() const { return enforcer_; }
  const std::shared_ptr<MotifTrace>& trace() const { return trace_; }

 private:
  using Forms = std::vector<PlannedForm>;
  struct Member {
    std::shared_ptr<const Forms> forms;
    std::size_t next = 0;
    int64_t iteration = 0;
    int64_t marks = 0;   // of the program, before the group's last call
    bool begun = false;  // the iteration that the next call begins has been told to the handler
  };

  struct Step;
  struct Look;
  Step step(const std::string& group, const What& what, Look& look);
  std::size_t find(const std::string& group, const What& what);
  void find_again();

  const Handler handler_;
  const std::shared_ptr<Enforcer> enforcer_ = std::make_shared<Enforcer>();
  const std::shared_ptr<MotifTrace> trace_ = std::make_shared<MotifTrace>();
  mutable std::mutex mutex_;               // guards all members below
  std::map<std::string, Member> members_;  // groups that follow a plan
  int64_t iteration_ = -1;
  uint64_t order_number_ = 0;  // the enforcer's, of the plans' order
  int64_t marks_ = 0;          // of the program so far
  bool watching_ = true;
  bool finding_ = false;  // iterations have been found, and since then neither a plan was set nor watch() called
  IterationFinder finder_;
  std::vector<Seen> seen_ = std::vector<Seen>(2 * IterationFinder::kLongest);  // a ring
  std::size_t seen_count_ = 0;  // never begins again, so that each has a number of its own
};

/// The pass: calls of a group that its plan expects become motifs, which the enforcer issues.
class Scheduler : public Pass {
 public:
  /// `lanes`: groups of the same ranks and candidates on which nothing else is issued. `all_ranks`: the group has all
  /// ranks of the job.
  Scheduler(std::shared_ptr<PlanControl> control, const Group& group, std::vector<std::shared_ptr<Group>> lanes,
            bool all_ranks);

  std::string_view name() const override { return "schedule"; }
  Outcome handle(Passage& passage, const Next& next) override;
  bool synchronize(std::chrono::nanoseconds limit) override { return control_->enforcer()->synchronize(limit); }

 private:
  struct Lane {
    std::shared_ptr<Group> group;
    uint32_t number;  // of the enforcer
  };
  void synchronize_before(const Passage& passage);
  Outcome run_planned(Passage& passage, const PlanControl::Turn& turn);
  PlannedCall planned(const Passage& passage, const PlanControl::Turn& turn);

  const std::shared_ptr<PlanControl> control_;
  const std::string name_;
  const bool all_ranks_;
  std::vector<Lane> lanes_;
};

}  // namespace mcr
