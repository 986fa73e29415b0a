// SPDX-License-Identifier: Apache-2.0
// Parts of a call: the same part of every block of its buffers.
#pragma once

#include <cstdint>
#include <functional>

#include "algorithms/schedule.h"

namespace mcr {

/// Elements of a block.
struct Span {
  int64_t begin = 0, count = 0;
};

/// The part `index` of `parts` adjacent parts. Their lengths differ by one at most; the first ones are longer.
Span part_of(int64_t count, int64_t index, int64_t parts);

/// One part of a call.
struct PartOf {
  std::function<Span(int64_t count)> of_block;  // the part's span of a block of `count` elements; equal on all ranks
  uint8_t index;                                // Task::part of its Issue
  bool packed;                                  // the pieces of several blocks are copied into one buffer
  bool late;                                    // the Issue is late even if nothing precedes it
};

/// Adds the tasks of one part: an Issue, and copies if it is packed. The op must be cuttable. `of_block` is used only
/// during the call.
void issue_part(const Call& call, int size, const PartOf& part, Schedule& schedule);

}  // namespace mcr
