// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "runtime/work.h"

namespace mcr {

class Group;
class Position;

/// Ends a call's wait for other ranks early if there is a reason. A waiting thread calls this regularly. It throws the
/// error with which communication has ended in this process, PeerLost if the group has lost a rank, NotInitialized if
/// the group is closed, and the exceptions of `interrupt`, which may be null.
void check_wait(const Position& position, Interrupt interrupt);

/// The error of a wait that ends at its limit with the operation still running.
Error late(const Work& work, std::chrono::milliseconds limit);

/// Waits until the work is complete; throws its error, or late(). The limit counts from `begin`, or from the call.
/// `position`: the group's, for a blocking call, whose work end_works() does not know: the group's end ends it.
void wait(Work& work, std::chrono::milliseconds limit, Interrupt interrupt, CallerLock* lock = nullptr,
          std::optional<std::chrono::steady_clock::time_point> begin = std::nullopt,
          const Position* position = nullptr);

/// Waits until the operations of the groups with these labels that are running now have ended, but not those that start
/// meanwhile, as other threads may go on until a group is closed; false if the time runs out first. Parts of other
/// operations do not count. True at once if communication has ended in this process.
bool drain(const std::vector<std::string>& groups, std::chrono::milliseconds limit, Interrupt interrupt);

/// Fails the running operations of the groups with these labels, which end: a wait for them raises at once. Their
/// requests are still polled, as the libraries use their memory.
void end_works(const std::vector<std::string>& groups) noexcept;

/// Ends the communication of a group at once: waits that poll, calls that the libraries can abort, and operations that
/// no thread waits for. From any thread; a library's thread may need the caller's locks.
void abort(Group& group) noexcept;

}  // namespace mcr
