// SPDX-License-Identifier: Apache-2.0
#include "algorithms/schedule.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/pool.h"
#include "base/reduce.h"

namespace mcr {

std::shared_ptr<Schedule> Schedule::make() { return make_pooled<Schedule>(); }

Schedule::Schedule() {
  tasks_.reserve(kUsual);
  edges_.reserve(kUsual);
  steps_.reserve(kUsual);
  objects_.reserve(kUsual);
}

Schedule::~Schedule() {
  for (auto one = objects_.rbegin(); one != objects_.rend(); ++one) one->destroy(one->object);
}

Call Schedule::operands(Buffer out, Buffer in, DType dtype) {
  Call call;
  call.dtype = dtype;
  call.out = out;
  call.in = in;
  return call;
}

Schedule::Id Schedule::add(Task::Kind kind, const Call& call, After after) {
  Task& task = tasks_.emplace_back();
  task.kind = kind;
  task.call = call;
  task.first_edge = static_cast<uint32_t>(edges_.size());
  task.edges = static_cast<uint32_t>(after.ids().size());
  task.late = std::ranges::any_of(after.ids(), [this](Id id) {
    const auto& before = tasks_[id];
    return before.late || before.kind == Task::Kind::Issue || before.kind == Task::Kind::Wait;
  });
  edges_.insert(edges_.end(), after.ids().begin(), after.ids().end());
  return static_cast<Id>(tasks_.size() - 1);
}

Schedule::Id Schedule::add(Task::Kind kind, const Call& call, After after, Step step) {
  const Id id = add(kind, call, after);
  tasks_[id].function = static_cast<uint32_t>(steps_.size());
  steps_.push_back(step);
  return id;
}

Schedule::Id Schedule::issue(const Call& call, After after, uint8_t part) {
  const Id id = add(Task::Kind::Issue, call, after);
  tasks_[id].part = part;
  late_ = late_ || tasks_[id].late;
  return id;
}

bool Schedule::poll(Id id, bool expedited) {
  expedited_ = expedited;
  return run_step(tasks_[id]);
}

bool Schedule::run_step(const Task& task) {
  const auto& step = steps_[task.function];
  return step.run(step.function, *this);
}

Schedule::Ids Schedule::late_after(Ids after) {
  const auto waits = [&](Id id) { return tasks_[id].late || tasks_[id].kind == Task::Kind::Issue; };
  if (std::ranges::none_of(after, waits)) after.push_back(wait([](bool) { return true; }));
  return after;
}

void Schedule::compute(Id id) {
  const Task& task = tasks_[id];
  const Call& call = task.call;
  switch (task.kind) {
    case Task::Kind::Copy:
      if (task.function != Task::kNone) break;
      if (call.in.count != 0)
        std::memcpy(call.out.data, call.in.data, static_cast<std::size_t>(call.in.count * size_of(call.dtype)));
      return;
    case Task::Kind::Combine:
      return mcr::combine(call.out.data, call.in.data, call.in.count, call.dtype, call.red);
    case Task::Kind::Encode:
    case Task::Kind::Decode:
      break;
    case Task::Kind::Issue:
    case Task::Kind::Wait:
      throw Error(ErrorCode::InvalidArgument, "schedule: expected a task that is computed, got an Issue or a Wait");
  }
  run_step(task);
}

}  // namespace mcr
