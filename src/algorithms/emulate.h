// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "algorithms/schedule.h"

namespace mcr {

/// Adds the tasks of an operation that the backend lacks: sends and receives of bytes on the communicator's internal
/// channel, and copies and combinations in rank order, so that all ranks get identical bits. A function of the call,
/// the rank and the number of ranks. The caller has resolved overlaps of input and output. Throws Error for operations
/// whose row allows no fallback.
void emulate(const Call& call, int rank, int size, Schedule& schedule);

}  // namespace mcr
