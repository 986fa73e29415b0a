// SPDX-License-Identifier: Apache-2.0
// Lists of tensors, and blocks with gaps between them, as one buffer.
#pragma once

#include <string_view>
#include <vector>

#include "base/call.h"
#include "runtime/extras.h"

namespace mcr {

/// Throws InvalidArgument unless all tensors of the list, the argument `name`, have one size. The text names the
/// vectored form of `op`, if one is given.
void require_even(const std::vector<Block>& blocks, const char* name, std::string_view op = {});

/// Turns the lists of the extras into the call's buffers: the memory itself if the tensors are contiguous, otherwise a
/// copy. Uneven lists, and every list of an all_to_all, become a vectored call. Results received into a copy reach the
/// tensors through unflatten().
void flatten(Call& call, Extras& extras);

/// Adds the last steps of the extras: copies received data to the tensors of the output list or to blocks with gaps,
/// and then runs `deliver`.
void unflatten(const Call& call, Extras& extras);

/// Makes the displacements of a vectored call contiguous, for libraries without displacements.
void pack(Call& call, Extras& extras);

/// Copies the input if it shares memory with the output, so that no backend has to know about in-place forms.
void separate(Call& call, Extras& extras);

}  // namespace mcr
