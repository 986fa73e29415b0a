// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/call.h"
#include "runtime/extras.h"

namespace mcr {

/// Checks a call against its op's row, once for all backends: reduction, root, extents, counts, displacements. Throws
/// Error naming the argument, what was expected and what was given. Fills in displacements that were left out, as
/// contiguous blocks.
void validate(Call& call, Extras& extras, int rank, int size);

}  // namespace mcr
