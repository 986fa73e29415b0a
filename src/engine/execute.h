// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "algorithms/schedule.h"
#include "plugin/backend.h"
#include "runtime/plan.h"

namespace mcr {

/// Computes and issues what is ready, in the order of the tasks, and leaves the rest in the plan: it is computed when
/// all that the lane tracks is complete. Every Issue must be ready by then. The plan keeps the schedule, also where
/// issue() throws.
void execute(const std::shared_ptr<Schedule>& schedule, Communicator& communicator, Lane& lane, Plan& plan);

}  // namespace mcr
