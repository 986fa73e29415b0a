// SPDX-License-Identifier: Apache-2.0
// Parts of a call: the same part of every block of its buffers. All cuts of blocks are made here.
#pragma once

#include <cstdint>

#include "algorithms/schedule.h"

namespace mcr {

/// Elements of a block.
struct Span {
  int64_t begin = 0, count = 0;
};

/// One part of a call.
struct PartOf {
  /// The part's span of a block of `count` elements; equal on all ranks. Gets `given`.
  Span (*of_block)(int64_t count, const void* given);
  const void* given;
  uint8_t index;  // Task::part of its Issue
  bool packed;    // the pieces of several blocks are copied into one buffer
  bool late;      // the Issue is late even if nothing precedes it
};

/// Adds the tasks of one part: an Issue, and copies if it is packed. The op must be cuttable. `given` is used only
/// during the call.
void issue_part(const Call& call, int size, const PartOf& part, Schedule& schedule);

}  // namespace mcr
