// SPDX-License-Identifier: Apache-2.0
#include "engine/stage.h"

#include <algorithm>

#include "base/candidate_name.h"
#include "base/pool.h"
#include "engine/dispatch.h"

namespace mcr {

namespace {

// Keeps its communicator, also while another thread closes the stage.
Candidate copy_of(Group& stage, const Passage& passage) {
  const Group::Inside inside(stage);
  return candidate_of(stage, passage.candidate->name);
}

}  // namespace

Candidate& candidate_of(Group& group, std::string_view name) {
  auto* candidate = group.find(name);
  if (candidate == nullptr) throw Error(ErrorCode::NotInitialized, "the group has given up the backend");
  return *candidate;
}

std::shared_ptr<Work> start_on(Group& stage, Candidate candidate, Call call, std::shared_ptr<void> memory) {
  Extras extras;
  extras.owned.push_back(std::move(memory));
  return start(stage, &candidate, call, extras);
}

Stage::Stage(std::shared_ptr<Group> group) : group_(std::move(group)) {
  const auto sets = sharing(group_->backends());
  std::map<std::string, std::shared_ptr<Ordered>> made;
  for (const auto& candidate : group_->candidates()) {
    if (candidate.variant != 0) continue;
    auto& ordered = made[sets.find(candidate.backend.name)->second];
    if (ordered == nullptr) ordered = std::make_shared<Ordered>();
    ordered->progress.push_back(&candidate.backend.progress);
    executors_[candidate.backend.name] = ordered;
  }
}

bool Stage::serves(const Candidate& candidate) const { return group_->find(candidate.name) != nullptr; }

Start Stage::later(const Passage& passage, const std::shared_ptr<Schedule>& schedule) const {
  // The schedule outlives the run that calls this.
  return [candidate = copy_of(*group_, passage), group = group_, memory = std::weak_ptr(schedule)](const Task& task,
                                                                                                   Requests& requests) {
    requests.push_back(request_of(start_on(*group, candidate, task.call, memory.lock())));
  };
}

std::unique_ptr<Request> Stage::submit(const Passage& passage, const std::shared_ptr<Schedule>& schedule,
                                       const Start& first, LateFor late_for) {
  if (!schedule->late()) {
    auto run = make_pooled<Run>(schedule);
    run->begin(first);
    return request_of(nullptr, std::move(run));
  }
  const auto run = make_pooled<Run>(schedule, later(passage, schedule));
  auto executor = executor_of(passage, late_for);
  executor->submit(run, first);
  return request_of(std::move(executor), run);
}

void Stage::start_now(const Passage& passage, const Call& call, std::shared_ptr<void> memory) {
  start_on(*group_, copy_of(*group_, passage), call, std::move(memory));
}

// No other call may wait for a message that waits for its peer. Messages do not wait behind collectives, which other
// ranks may make after the message.
std::shared_ptr<Executor> Stage::executor_of(const Passage& passage, LateFor late_for) {
  auto& backend = passage.candidate->backend;
  const bool message = row(passage.call.op).is(kPeer);
  if (message && late_for == LateFor::Ranks) {
    return std::make_shared<Executor>(false, std::vector{&backend.progress});
  }
  const std::lock_guard lock(mutex_);
  auto& both = *executors_.at(backend.name);
  auto& executor = message ? both.messages : both.collectives;
  if (executor == nullptr) executor = std::make_shared<Executor>(true, both.progress);
  return executor;
}

bool Stage::synchronize(std::chrono::nanoseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  std::vector<std::shared_ptr<Executor>> all;  // waited for without the lock, which calls take
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [backend, executors] : executors_) {
      if (executors->collectives != nullptr) all.push_back(executors->collectives);
    }
  }
  return std::ranges::all_of(
      all, [&](const auto& executor) { return executor->synchronize(deadline - std::chrono::steady_clock::now()); });
}

std::map<std::string, ExecutorStatistics> Stage::statistics() {
  std::map<std::string, ExecutorStatistics> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [backend, executors] : executors_) {
    if (executors->collectives != nullptr) all.emplace(backend, executors->collectives->statistics());
  }
  return all;
}

}  // namespace mcr
