// SPDX-License-Identifier: Apache-2.0
// Maps the core's element types to those of torch's libraries.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "base/types.h"

namespace mcr::c10d_types {

/// The elements that a library gets: `factor` of them make up one element of the call.
struct View {
  at::ScalarType type;
  int64_t factor = 1;
};

/// Bytes: moving data needs no type, and torch's libraries lack some of the core's types.
inline View data_view(DType dtype) { return {at::kByte, size_of(dtype)}; }

/// A type that every library knows and that gives the same bits: sums and products in two's complement do not depend on
/// the sign, bitwise operations do not depend on the width. If there is none: nothing for gloo; other libraries get the
/// type itself, and refuse it on all ranks if they lack it. Nothing for MIN and MAX of floating-point numbers, which
/// lose a NaN in some libraries.
std::optional<View> reduction_view(bool gloo, DType dtype, RedOp red);

}  // namespace mcr::c10d_types
