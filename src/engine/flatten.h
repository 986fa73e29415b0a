// SPDX-License-Identifier: Apache-2.0
// Lists of tensors, and blocks with gaps between them, as one buffer.
#pragma once

#include "base/call.h"
#include "runtime/plan.h"

namespace mcr {

/// Turns the plan's lists into the call's buffers: the memory itself where the tensors lie one behind the other,
/// otherwise a copy. Uneven lists, and every list of an all_to_all, become a vectored call. Results that were received
/// into a copy reach the tensors through unflatten().
void flatten(Call& call, Plan& plan);

/// Adds the last steps of the plan: copies received data to the tensors of the output list or to spread-out blocks, and
/// then what `deliver` holds.
void unflatten(const Call& call, Plan& plan);

/// Makes the displacements of a vectored call packed, for libraries that know nothing else.
void pack(Call& call, Plan& plan);

/// Copies the input if it shares memory with the output, so that no backend has to know about in-place forms.
void separate(Call& call, Plan& plan);

}  // namespace mcr
