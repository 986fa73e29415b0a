// SPDX-License-Identifier: Apache-2.0
#include "passes/schedule/scheduler.h"

#include <functional>
#include <optional>
#include <utility>

#include "base/digest.h"
#include "base/pool.h"
#include "engine/flatten.h"
#include "engine/stage.h"
#include "engine/wait.h"
#include "observe/activity.h"
#include "observe/position.h"
#include "observe/recorder.h"

namespace mcr {

namespace {

constexpr uint64_t kHighest = uint64_t{1} << 63U;

// A digest of what is equal on all ranks and makes calls of different iterations equal. The counts of a rank are not: a
// root has others than the other ranks, and those of vectored calls change from one to the next. The highest bit is set
// unless all ranks make the call: iterations begin where signatures are least, and should begin with a call of all
// ranks, as other groups may leave their plans without the knowledge of the other ranks.
uint64_t signature_of(const Passage& passage, bool all_ranks) {
  const Call& call = passage.call;
  uint64_t found = 0;
  const auto add = [&](uint64_t value) { found = digest(found, value); };
  add(static_cast<uint64_t>(call.op) | static_cast<uint64_t>(call.dtype) << 8U |
      static_cast<uint64_t>(call.red) << 16U | static_cast<uint64_t>(call.vectored) << 24U |
      static_cast<uint64_t>(call.asynchronous) << 25U | static_cast<uint64_t>(call.device.type) << 26U);
  add(static_cast<uint64_t>(call.root));
  if (!call.vectored) add(static_cast<uint64_t>(message_elements(call, passage.group.size())));
  if (passage.candidate != nullptr) add(std::hash<std::string>()(passage.candidate->name));
  return all_ranks ? found & ~kHighest : found | kHighest;
}

// Plans know no streams of devices. Of the counts of vectored calls, ranks know only their own.
bool fixed(const Call& call) { return call.device.type != DeviceType::CPU || !has_motifs(call); }

}  // namespace

// ---- what all groups share

// The outcome of a look at a call: its turn, or an event that must be handled first.
struct PlanControl::Step {
  Turn turn = {};
  std::optional<Event> event = {};
  int64_t value = 0;
};

struct PlanControl::Look {
  bool seen = false;       // the call has been counted, if calls are watched
  std::size_t number = 0;  // among these
  bool begun = false;      // it has begun an iteration
};

void PlanControl::watch() {
  const std::lock_guard lock(mutex_);
  watching_ = true;
  finding_ = false;
  finder_.reset();
}

void PlanControl::mark() {
  const std::lock_guard lock(mutex_);
  ++marks_;
  finder_.mark();
}

void PlanControl::demand(std::size_t calls, std::size_t repetitions) {
  const std::lock_guard lock(mutex_);
  finder_.demand(calls, repetitions);
}

std::vector<PlanControl::Seen> PlanControl::newest(std::size_t count) const {
  const std::lock_guard lock(mutex_);
  std::vector<Seen> found;
  for (auto number = seen_count_ - std::min({count, seen_count_, seen_.size()}); number < seen_count_; ++number) {
    found.push_back(seen_[number % seen_.size()]);
  }
  return found;
}

void PlanControl::set_plan(std::map<std::string, Forms> plans, std::vector<PlanPlace> order, uint32_t calls) {
  {
    const std::lock_guard lock(mutex_);
    members_.clear();
    for (auto& [group, forms] : plans) {
      auto& member = members_[group];
      member.forms = std::make_shared<const Forms>(std::move(forms));
      member.marks = marks_;
    }
    iteration_ = 0;
    finding_ = false;
    order_number_ = enforcer_->set_order(std::move(order), calls);  // no thread sees these plans with an earlier order
  }
  enforcer_->drive();
}

// Call with the lock held, while calls are watched. The length of an iteration that the call begins, else 0.
std::size_t PlanControl::find(const std::string& group, const What& what) {
  auto& seen = seen_[seen_count_++ % seen_.size()];
  seen.group = group;  // assigned one by one, as that reuses their memory
  seen.signature = what.signature;
  seen.named.assign(what.named == nullptr ? std::string_view() : *what.named);
  seen.fixed = what.fixed;
  const auto found = finder_.add(what.signature, std::hash<std::string>()(group));
  if (found != 0) {
    watching_ = false;
    finding_ = true;
  }
  return found;
}

PlanControl::Step PlanControl::step(const std::string& group, const What& what, Look& look) {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(look.seen, true) && watching_) {
    const auto calls = find(group, what);
    look.number = seen_count_;
    if (calls != 0) {
      look.begun = true;
      return {.event = Event::Found, .value = static_cast<int64_t>(calls)};
    }
  }
  const auto found = members_.find(group);
  if (found == members_.end()) return {};
  auto& member = found->second;
  const auto& form = (*member.forms)[member.next];
  // A program that marks its iterations does so before the group's first call of each, except the plan's first, whose
  // mark came before the plan. Only the group's own calls count: where others are, differs between its ranks.
  const bool begins = member.next == 0 && member.iteration > 0;
  const bool elsewhere = marks_ > 0 && (member.marks != marks_) != begins;
  if (elsewhere || form.signature != what.signature) {
    Step step{.event = Event::Left, .value = form.call};
    std::vector<uint32_t> left;
    for (const auto& each : *member.forms) left.push_back(each.call);
    enforcer_->leave_out(left);
    members_.erase(found);
    if (!watching_) look.seen = false;  // the handler may begin to watch, with this call
    return step;
  }
  if (form.call == 0 && !member.begun && !look.begun) {
    member.begun = look.begun = true;
    return {.event = Event::Iteration, .value = ++iteration_};
  }
  const Turn turn{&form, member.forms, member.iteration, order_number_, std::exchange(member.marks, marks_), 0};
  member.begun = false;
  if (++member.next == member.forms->size()) {
    member.next = 0;
    ++member.iteration;
  }
  return {.turn = turn};
}

PlanControl::Turn PlanControl::enter(const std::string& group, const What& what) {
  Look look;
  for (;;) {
    auto next = step(group, what, look);
    next.turn.seen = look.number;
    if (!next.event) return next.turn;
    if (next.event == Event::Left) enforcer_->drive();
    const Activity::Pause pause;  // the handler may measure and wait for longer than the call's timeout
    try {
      handler_(*next.event, next.value);
    } catch (...) {
      give_back(group, next.turn);
      if (next.event == Event::Found) find_again();
      throw;
    }
  }
}

void PlanControl::find_again() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(finding_, false)) watching_ = true;
}

void PlanControl::give_back(const std::string& group, const Turn& turn) {
  const std::lock_guard lock(mutex_);
  if (turn.seen != 0 && turn.seen == seen_count_) {
    --seen_count_;
    finder_.take_back();
  }
  const auto found = members_.find(group);
  if (turn.form == nullptr || found == members_.end() || found->second.forms != turn.plan) return;
  auto& member = found->second;
  const auto place = static_cast<std::size_t>(turn.form - member.forms->data());
  const bool last = place + 1 == member.forms->size();
  if (member.next != (last ? 0 : place + 1) || member.iteration != turn.iteration + (last ? 1 : 0)) return;
  member.next = place;
  member.iteration = turn.iteration;
  member.marks = turn.marks;
  member.begun = turn.form->call == 0;
}

// ---- the pass

Scheduler::Scheduler(std::shared_ptr<PlanControl> control, const Group& group,
                     std::vector<std::shared_ptr<Group>> lanes, bool all_ranks)
    : control_(std::move(control)), name_(group.spec().name), all_ranks_(all_ranks) {
  for (auto& lane : lanes) lanes_.push_back({std::move(lane), control_->enforcer()->new_lane()});
}

Outcome Scheduler::handle(Passage& passage, const Next& next) {
  if (row(passage.call.op).is(kPeer)) {  // which the group's other ranks do not see
    if (!passage.asynchronous && control_->enforcer()->pending()) control_->enforcer()->expedite();
    return next(passage);
  }
  const auto* candidate = named_candidate(passage);
  const auto* named = candidate == nullptr ? nullptr : &candidate->name;
  const auto turn = control_->enter(name_, {signature_of(passage, all_ranks_), named, fixed(passage.call)});
  try {
    if (turn.form != nullptr && !turn.form->channels.empty()) return run_planned(passage, turn);
    // A library that admits one thread at a time would keep the motifs out until the other ranks have made this call,
    // and these may wait for the motifs first.
    if (!passage.asynchronous && control_->enforcer()->pending()) synchronize_before(passage);
    return next(passage);
  } catch (...) {
    if (!passage.notes.sent) control_->give_back(name_, turn);
    throw;
  }
}

void Scheduler::synchronize_before(const Passage& passage) {
  const Activity::Polling polling;
  const auto deadline = std::chrono::steady_clock::now() + passage.call.timeout;
  try {
    while (!control_->enforcer()->synchronize(kLookInterval)) {
      check_wait(passage.group.position(), passage.interrupt);
      if (std::chrono::steady_clock::now() < deadline) continue;
      const auto first = control_->enforcer()->first();
      throw Error(ErrorCode::Timeout,
                  "timed out: planned calls before it were not issued" + (first.empty() ? first : ", first " + first));
    }
  } catch (const Error& error) {
    throw refusal(passage, error);
  }
}

PlannedCall Scheduler::planned(const Passage& passage, const PlanControl::Turn& turn) {
  separate(passage.call, passage.extras);  // a motif may write what a later one sends
  const auto schedule = Schedule::make();
  motifs(passage.call, passage.group.rank(), passage.group.size(), turn.form->form, *schedule);
  struct Target {
    std::shared_ptr<Group> group;
    Candidate candidate;  // a copy keeps the communicator, which the group may remove meanwhile
  };
  std::vector<Target> targets;
  PlannedCall call;
  for (std::size_t motif = 0; motif < turn.form->channels.size(); ++motif) {
    const auto& lane = lanes_.at(turn.form->lanes.at(motif));
    const Group::Inside inside(*lane.group);
    targets.push_back({lane.group, candidate_of(*lane.group, turn.form->channels[motif])});
    call.lanes.push_back(lane.number);
  }
  const TracedMotif traced{turn.iteration, turn.form->call, passage.call.op, passage.notes.bytes};
  Start start = [targets = std::move(targets), memory = std::weak_ptr(schedule), trace = control_->trace(), traced](
                    const Task& task, Requests& requests) {
    const auto& [group, candidate] = targets.at(task.part);
    const auto issued = trace->on() ? Recorder::now() : 0;
    auto work = start_on(*group, candidate, task.call, memory.lock());
    if (issued != 0) [[unlikely]]
      trace->follow(*work,
                    {traced.iteration, traced.call, traced.op, traced.bytes, task.part, &candidate.name, issued});
    requests.push_back(request_of(std::move(work)));
  };
  call.run = make_pooled<Run>(schedule, std::move(start));
  call.run->begin(nullptr);  // no Issue is ready: all of them are late
  call.call = turn.form->call;
  call.iteration = turn.iteration;
  call.order = turn.order;
  call.progress = &passage.candidate->backend.progress;
  call.lost = [group = lanes_.front().group] { return group->position().lost(); };
  call.op = passage.call.op;
  call.seq = passage.notes.seq;
  call.group = &passage.group.position().group();
  return call;
}

Outcome Scheduler::run_planned(Passage& passage, const PlanControl::Turn& turn) {
  std::shared_ptr<Work> work;
  try {
    passage.candidate = &candidate_of(passage.group, turn.form->channels.front());
    auto call = planned(passage, turn);
    auto request = request_of(control_->enforcer(), call.run);
    control_->enforcer()->submit(std::move(call));
    work = hold(passage, std::move(request));
  } catch (const Error& error) {
    throw refusal(passage, error);
  }
  if (passage.asynchronous) return {work};
  return {nullptr, wait_for(passage, *work)};
}

}  // namespace mcr
