// SPDX-License-Identifier: Apache-2.0
// Reductions on host memory, for emulated operations and for libraries that lack an element type of the core.
#pragma once

#include <cstdint>
#include <span>

#include "base/types.h"

namespace mcr {

/// into[i] = into[i] (red) from[i]. The buffers do not overlap. Defined where `defined(dtype, red)`, except for AVG,
/// which is a SUM and a divide(); throws Error otherwise. Integers wrap around; MIN and MAX yield NaN where either side
/// is NaN; a bool is one byte, false if it is zero: SUM is or, PRODUCT is and.
void combine(void* into, const void* from, int64_t count, DType dtype, RedOp red);

/// out[i] = sources[0][i] (red) sources[1][i] (red) …, in this order; AVG also divides by the number of sources. `out`
/// may be one of the sources; apart from that, the buffers do not overlap. Types of 16 and 8 bits are computed in float
/// and rounded once. Throws Error as combine() does. Uses the processor's vector instructions.
void combine_all(void* out, std::span<const void* const> sources, int64_t count, DType dtype, RedOp red);

/// Throws the error of a reduction that is not defined on the type.
[[noreturn]] void undefined_reduction(RedOp red, DType dtype);

/// data[i] = data[i] / divisor; integers round towards zero. Throws Error for bool and for a divisor below 1.
void divide(void* data, int64_t count, DType dtype, int64_t divisor);

/// data[i] = data[i] * factor on floating-point types; throws Error for others. The factor is one element of `dtype` at
/// `element`, or `value` if `element` is null. 16- and 8-bit types are multiplied in float and rounded once.
void multiply(void* data, int64_t count, DType dtype, double value, const void* element);

/// Turns floating-point numbers into signed integers of equal size and order, -0 below +0. NaNs become the largest
/// integer if `nan_is_largest`, else the smallest, so that MAX or MIN of the integers yields them.
void to_ordered(void* data, int64_t count, DType dtype, bool nan_is_largest);
/// The inverse of to_ordered(). The largest and the smallest integer become NaNs.
void from_ordered(void* data, int64_t count, DType dtype);

}  // namespace mcr
