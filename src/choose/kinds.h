// SPDX-License-Identifier: Apache-2.0
// Kinds of calls: those whose candidates are compared together.
#pragma once

#include <cstdint>

#include "base/call.h"

namespace mcr {

/// The op whose measurements count: a receive costs what the send does.
inline Op measured_as(Op op) { return op == Op::recv ? Op::send : op; }

/// The class of a call's element type where its cost depends on the type: for operations that reduce.
DTypeClass types_of(const Call& call);

/// A number for the call's op, form, class of types and kind of device, and for a class of sizes. Equal on all ranks.
uint64_t kind_key(const Call& call, int size);

/// The call without its values that are local to this rank; its size_hint is `bytes`.
Call kind_of(const Call& call, int64_t bytes);

}  // namespace mcr
