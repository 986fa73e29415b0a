// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "algorithms/schedule.h"

namespace mcr {

/// Adds one collective that does the work of `calls`, which are of one kind: all_reduce, broadcast, all_gather or
/// reduce_scatter of one type, reduction and root. Its inputs are copied to a fused buffer, and the results to the
/// outputs of the calls. `allocate(bytes)` gives memory that lives as long as the schedule. Returns the Issue.
Schedule::Id fuse(std::span<const Call> calls, int rank, int size, Schedule& schedule,
                  const std::function<std::byte*(int64_t)>& allocate);

}  // namespace mcr
