// SPDX-License-Identifier: Apache-2.0
#include "engine/stages.h"

#include <algorithm>

#include "base/pool.h"
#include "engine/dispatch.h"

namespace mcr {

Slot& slot_of(Group& group, std::string_view name) {
  auto* slot = group.find(name);
  if (slot == nullptr) throw Error(ErrorCode::NotInitialized, "the group has given up the backend");
  return *slot;
}

std::shared_ptr<Work> start_on(Group& stage, Slot slot, Call call, std::shared_ptr<void> memory) {
  Plan plan;
  plan.owned.push_back(std::move(memory));
  return start(stage, &slot, call, plan);
}

Stages::Stages(std::vector<std::shared_ptr<Group>> groups) : groups_(std::move(groups)) {
  if (groups_.empty()) throw Error(ErrorCode::InvalidArgument, "stages: expected at least one group, got none");
}

bool Stages::serves(const Slot& slot) const {
  return std::ranges::all_of(groups_, [&](const auto& stage) { return stage->find(slot.name) != nullptr; });
}

Start Stages::later(const Passage& passage, const std::shared_ptr<Schedule>& schedule) const {
  std::vector<Slot> slots;
  for (const auto& stage : groups_) slots.push_back(slot_of(*stage, passage.slot->name));
  // The schedule outlives the run that calls this.
  return [slots = std::move(slots), groups = groups_, memory = std::weak_ptr(schedule)](const Task& task,
                                                                                        Requests& requests) {
    const auto stage = (task.stage - 1) % groups.size();
    requests.push_back(request_of(start_on(*groups[stage], slots[stage], task.call, memory.lock())));
  };
}

Requests Stages::submit_to(std::shared_ptr<Executor> executor, const Passage& passage,
                           const std::shared_ptr<Schedule>& schedule, const Start& first) {
  if (!schedule->late()) {
    auto run = make_pooled<Run>(schedule);
    run->begin(first);
    return requests_of(nullptr, std::move(run));
  }
  const auto run = make_pooled<Run>(schedule, later(passage, schedule));
  executor->submit(run, first);
  return requests_of(std::move(executor), run);
}

// A message whose late Issues wait for its peer has an executor of its own, as no other call may wait for it.
Requests Stages::submit(const Passage& passage, const std::shared_ptr<Schedule>& schedule, const Start& first) {
  const bool message = row(passage.call.op).is(kPeer);
  auto alone = message ? std::make_shared<Executor>(false, &passage.slot->backend.progress, stages()) : nullptr;
  return submit_to(message ? std::move(alone) : ordered(passage), passage, schedule, first);
}

Requests Stages::submit_staged(const Passage& passage, const std::shared_ptr<Schedule>& schedule) {
  return submit_to(ordered(passage), passage, schedule, nullptr);
}

void Stages::start_now(const Passage& passage, const Call& call, std::shared_ptr<void> memory) {
  auto& stage = *groups_.front();
  start_on(stage, slot_of(stage, passage.slot->name), call, std::move(memory));
}

// Messages do not wait behind collectives, which other ranks may make after the message.
std::shared_ptr<Executor> Stages::ordered(const Passage& passage) {
  auto& backend = passage.slot->backend;
  const std::lock_guard lock(mutex_);
  auto& both = executors_[backend.name];
  auto& executor = row(passage.call.op).is(kPeer) ? both.messages : both.collectives;
  if (executor == nullptr) executor = std::make_shared<Executor>(true, &backend.progress, stages());
  return executor;
}

bool Stages::synchronize(std::chrono::nanoseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const std::lock_guard lock(mutex_);
  return std::all_of(executors_.begin(), executors_.end(), [&](const auto& entry) {
    const auto& executor = entry.second.collectives;
    return executor == nullptr || executor->synchronize(deadline - std::chrono::steady_clock::now());
  });
}

std::map<std::string, ExecutorStatistics> Stages::statistics() {
  std::map<std::string, ExecutorStatistics> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [backend, executors] : executors_) {
    if (executors.collectives != nullptr) all.emplace(backend, executors.collectives->statistics());
  }
  return all;
}

}  // namespace mcr
