// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/call.h"

namespace mcr {

/// The largest message that every library can send in one piece.
constexpr int64_t kMessageBytes = int64_t{1} << 30;

/// Calls `take(call)` with the internal messages that move a buffer to or from a rank, in order. `op`: send or recv.
template <class Take>
void each_message(Op op, int peer, const Buffer& buffer, DType dtype, std::chrono::milliseconds timeout,
                  const Take& take) {
  const int64_t length = buffer.count * size_of(dtype);
  for (int64_t offset = 0; offset < length; offset += kMessageBytes) {
    Call piece;
    piece.op = op;
    piece.internal = true;
    piece.root = peer;
    piece.out = {at(buffer.data, offset), std::min(kMessageBytes, length - offset)};
    piece.timeout = timeout;
    take(piece);
  }
}

}  // namespace mcr
