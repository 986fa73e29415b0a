// SPDX-License-Identifier: Apache-2.0
// The candidate hier(shm,mpi).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "algorithms/hierarchy.h"
#include "engine/dimensions.h"

namespace mcr {

/// The groups of Lines::Part.
using LineParts = std::array<DimensionsCommunicator::Part, Lines::kParts>;

/// Gives a group the candidate `name`, which is registered. The group must have the outermost backend: throws
/// InvalidArgument otherwise.
void connect_hierarchy(Group& group, const std::string& name, std::vector<std::vector<int>> lines,
                       const LineParts& parts);

}  // namespace mcr
