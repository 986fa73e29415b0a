// SPDX-License-Identifier: Apache-2.0
// The candidate themis(shm,mpi): chunks that go through the dimensions of a topology in planned orders (Themis,
// ISCA'22).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "algorithms/ordered.h"
#include "choose/themis.h"
#include "engine/dimensions.h"

namespace mcr {

/// The plan of a call: of all policies, or the baseline, and some numbers of chunks, the one with the shortest
/// simulated time. Sizes in steps of an eighth share a plan. A function of its arguments, equal on all ranks.
themis::Plan plan_of(std::span<const themis::Dimension> network, Op op, int64_t bytes, bool baseline);

/// Gives a group the candidate `name`, which is registered. `network`: the dimensions of the grid, innermost first,
/// equal on all ranks. `parts`: the group of the rank's line in each dimension. Throws InvalidArgument if the group
/// lacks the outermost backend, and for a network that has no plans.
void connect_themis(Group& group, const std::string& name, std::vector<themis::Dimension> network, Grid grid,
                    const std::vector<DimensionsCommunicator::Part>& parts);

}  // namespace mcr
