// SPDX-License-Identifier: Apache-2.0
#include "algorithms/schedule.h"

#include <cstring>

#include "base/error.h"
#include "base/reduce.h"

namespace mcr {

void compute(const Task& task) {
  const Call& call = task.call;
  switch (task.kind) {
    case Task::Kind::Copy:
      if (call.in.count != 0)
        std::memcpy(call.out.data, call.in.data, static_cast<std::size_t>(call.in.count * size_of(call.dtype)));
      return;
    case Task::Kind::Combine:
      return combine(call.out.data, call.in.data, call.in.count, call.dtype, call.red);
    case Task::Kind::Issue:
      break;
  }
  throw Error(ErrorCode::InvalidArgument, "schedule: expected a task that is computed, got an Issue");
}

}  // namespace mcr
