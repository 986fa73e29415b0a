// SPDX-License-Identifier: Apache-2.0
// The one path of every call: flatten, validate, passes, choose, issue or emulate, finish.
#pragma once

#include <memory>

#include "engine/wait.h"
#include "group/group.h"
#include "runtime/work.h"

namespace mcr {

/// Runs the call to its end on the caller's thread. Returns the group rank that sent a received message, else -1. In
/// run() and start(), `candidate` is the one that the caller names, or null for the group's choice; an invalid call
/// throws Error before anything is sent; `call` and `extras` are consumed; `lock` is null if the caller holds none.
int run(Group& group, Candidate* candidate, Call& call, Extras& extras, Interrupt interrupt,
        CallerLock* lock = nullptr);

/// Starts the call. It may wait for an agreement of the ranks, which `interrupt` may end. Its backend's progress thread
/// co-owns the Work until it is complete.
std::shared_ptr<Work> start(Group& group, Candidate* candidate, Call& call, Extras& extras,
                            Interrupt interrupt = nullptr, CallerLock* lock = nullptr);
/// Like start(), but through these passes instead of the group's own; null: none, for calls that the program did not
/// make, such as an agreement of the ranks.
std::shared_ptr<Work> start_through(const std::shared_ptr<const Chain>& chain, Group& group, Candidate* candidate,
                                    Call& call, Extras& extras);

}  // namespace mcr
