// SPDX-License-Identifier: Apache-2.0
#include "algorithms/schedule.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/reduce.h"

namespace mcr {

Call Schedule::operands(Buffer out, Buffer in, DType dtype) {
  Call call;
  call.dtype = dtype;
  call.out = out;
  call.in = in;
  return call;
}

Schedule::Id Schedule::add(Task::Kind kind, const Call& call, const Ids& after) {
  Task task;
  task.kind = kind;
  task.call = call;
  task.first_edge = static_cast<uint32_t>(edges_.size());
  task.edges = static_cast<uint32_t>(after.size());
  task.late = std::any_of(after.begin(), after.end(), [this](Id id) {
    const auto& before = tasks_[id];
    return before.late || before.kind == Task::Kind::Issue || before.kind == Task::Kind::Wait;
  });
  edges_.insert(edges_.end(), after.begin(), after.end());
  tasks_.push_back(std::move(task));
  return static_cast<Id>(tasks_.size() - 1);
}

Schedule::Id Schedule::issue(const Call& call, const Ids& after, uint8_t part) {
  const Id id = add(Task::Kind::Issue, call, after);
  tasks_[id].part = part;
  if (tasks_[id].late) tasks_[id].stage = ++stages_;
  return id;
}

Schedule::Id Schedule::encode(const Call& operands, std::function<void(Schedule&)> function, const Ids& after) {
  const Id id = add(Task::Kind::Encode, operands, after);
  tasks_[id].function = static_cast<uint32_t>(functions_.size());
  functions_.push_back(std::move(function));
  return id;
}

Schedule::Id Schedule::decode(const Call& operands, std::function<void(Schedule&)> function, const Ids& after) {
  const Id id = encode(operands, std::move(function), after);
  tasks_[id].kind = Task::Kind::Decode;
  return id;
}

Schedule::Id Schedule::wait(std::function<bool()> function) {
  const Id id = add(Task::Kind::Wait, {}, {});
  tasks_[id].function = static_cast<uint32_t>(waits_.size());
  waits_.push_back(std::move(function));
  return id;
}

void Schedule::compute(Id id) {
  const Task& task = tasks_[id];
  const Call& call = task.call;
  switch (task.kind) {
    case Task::Kind::Copy:
      if (call.in.count != 0)
        std::memcpy(call.out.data, call.in.data, static_cast<std::size_t>(call.in.count * size_of(call.dtype)));
      return;
    case Task::Kind::Combine:
      return mcr::combine(call.out.data, call.in.data, call.in.count, call.dtype, call.red);
    case Task::Kind::Encode:
    case Task::Kind::Decode:
      return functions_[task.function](*this);
    case Task::Kind::Issue:
    case Task::Kind::Wait:
      break;
  }
  throw Error(ErrorCode::InvalidArgument, "schedule: expected a task that is computed, got an Issue or a Wait");
}

}  // namespace mcr
