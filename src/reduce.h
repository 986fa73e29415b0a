// SPDX-License-Identifier: Apache-2.0
// Reductions on host memory: what the emulations, and libraries without an element type of ours, combine with.
#pragma once

#include <cstdint>

#include "types.h"

namespace mcr {

/// into[i] = into[i] (red) from[i]. The two do not overlap. Defined where `defined(dtype, red)`, except for AVG, which
/// is a SUM and a divide(); throws Error otherwise. Integers wrap around, MIN and MAX yield NaN where either side is
/// NaN, and a bool is one byte, false where it is zero: SUM is or, PRODUCT is and.
void combine(void* into, const void* from, int64_t count, DType dtype, RedOp red);

/// data[i] = data[i] / divisor; integers round towards zero. Throws Error for bool and for a divisor below 1.
void divide(void* data, int64_t count, DType dtype, int64_t divisor);

}  // namespace mcr
