// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend.h"
#include "plan.h"

namespace mcr {

/// Starts `call` as sends and receives between all ranks concerned, and adds what combines their results to the plan.
/// All messages are started at once, so that an emulated operation needs nobody's attention to get on; results of
/// reductions are combined in rank order, so that they are equal on all ranks. The fallback of Fallback::Exchange:
/// right for every type and size, not fast.
void emulate(const Call& call, Plan& plan, Communicator& communicator, int rank, int size, Lane& lane);

}  // namespace mcr
