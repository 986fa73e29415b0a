// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "algorithms/schedule.h"

namespace mcr {

/// Adds one collective that does the work of `calls`, which are of one kind: all_reduce, broadcast, all_gather or
/// reduce_scatter of one type, reduction and root. Its inputs are copied to a fused buffer, and the results to the
/// outputs of the calls; to the tensors of a broadcast's root if they differ. A fused buffer has at least `least`
/// bytes: equal sizes can be reused. Returns the Issue.
Schedule::Id fuse(std::span<const Call> calls, int rank, int size, Schedule& schedule, int64_t least = 0);

}  // namespace mcr
