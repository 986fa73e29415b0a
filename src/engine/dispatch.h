// SPDX-License-Identifier: Apache-2.0
// The one path of every call: flatten, validate, passes, choose, issue or emulate, finish.
#pragma once

#include <memory>

#include "group/group.h"
#include "runtime/work.h"

namespace mcr {

/// Runs the call to its end on the caller's thread. Returns the group rank that a receive came from, else -1.
/// In both forms `slot` is the backend that the caller names, or null for the group's choice, and a wrong call throws
/// Error with nothing sent. `call` and `plan` are used up.
int run(Group& group, Group::Slot* slot, Call& call, Plan& plan, Interrupt interrupt);

/// Starts the call. The Work is also owned by its backend's progress thread until it is complete.
std::shared_ptr<Work> start(Group& group, Group::Slot* slot, Call& call, Plan& plan);
/// The same around the group's passes: for what is no call of the program, such as an agreement of the ranks.
std::shared_ptr<Work> start_around_passes(Group& group, Group::Slot* slot, Call& call, Plan& plan);

/// Waits until the work is complete; throws its error, or Timeout with the operation still running.
void wait(Work& work, std::chrono::milliseconds limit, Interrupt interrupt);

}  // namespace mcr
