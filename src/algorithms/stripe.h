// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "algorithms/schedule.h"

namespace mcr {

/// How a call's data is split over two backends. Equal on all ranks, except `packed`.
struct Stripes {
  static constexpr int32_t kWhole = 1000;

  int32_t share = kWhole / 2;    // the first backend's, in thousandths
  std::array<bool, 2> packed{};  // by part: blocks with counts must be contiguous
};

/// The number of elements of a block that go to the first part. A function of the block's size alone, so that senders
/// and receivers of uneven blocks agree. Both pieces of an aligned block begin on a cache line.
int64_t first_piece(int64_t count, const Stripes& stripes);

/// Adds the tasks of a call whose blocks are split in two: an Issue for each part, and copies where a library needs the
/// pieces of several blocks in one buffer. The op must be cuttable. A function of the call and the number of ranks.
void stripe(const Call& call, int size, const Stripes& stripes, Schedule& schedule);

}  // namespace mcr
