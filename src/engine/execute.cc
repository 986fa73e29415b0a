// SPDX-License-Identifier: Apache-2.0
#include "engine/execute.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace mcr {

void execute(const std::shared_ptr<Schedule>& schedule, Communicator& communicator, Lane& lane, Plan& plan) {
  plan.owned.push_back(schedule);
  const auto tasks = schedule->tasks();
  std::vector<bool> done(tasks.size());
  std::vector<Schedule::Id> later;
  for (Schedule::Id id = 0; id < tasks.size(); ++id) {
    const auto after = schedule->after(tasks[id]);
    if (!std::all_of(after.begin(), after.end(), [&](Schedule::Id one) { return done[one]; })) {
      later.push_back(id);
    } else if (tasks[id].kind == Task::Kind::Issue) {
      communicator.issue(tasks[id].call, lane);
    } else {
      schedule->compute(id);
      done[id] = true;
    }
  }
  if (later.empty()) return;
  plan.finish.emplace_back([schedule, later = std::move(later)] {
    for (const auto id : later) schedule->compute(id);
  });
}

}  // namespace mcr
