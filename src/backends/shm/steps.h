// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "backends/shm/blocks.h"
#include "backends/shm/segment.h"

namespace mcr::shm {

/// Small collectives. A collective is a step: each rank writes its data and the number of the step into its own slot,
/// and reads the slots of the other ranks. Its highest 16 bits are those of the History: ranks that have made
/// different calls, now or before, raise an error. A slot is reused some steps later; a rank that has reached step n
/// has finished step n - 1. One thread at a time.
class Steps {
 public:
  /// The progress of a call.
  struct Position {
    bool written = false;
    int next = 0;  // the rank to read next, counted from this one
  };

  Steps(Segment& segment, History& history, int rank);
  static bool takes(const Blocks& blocks) { return blocks.total() <= Slot::kBytes; }

  /// Makes progress without waiting. True once the call is complete. Sets `published` if other ranks may wait for this
  /// progress. Throws Error if another rank, whose data this one needs, has made another call, now or before.
  bool advance(const Call& call, const Blocks& blocks, Position& position, bool& published);

 private:
  bool reached(int rank, uint64_t steps);
  bool reached_before(int rank, uint64_t steps);
  bool writable();
  void write(const Blocks& blocks);
  bool read(const Call& call, const Blocks& blocks, Position& position);
  bool combine(const Call& call, const Blocks& blocks);
  void check(int rank);

  Segment& segment_;
  History& history_;
  const int rank_, size_;
  uint64_t step_ = 0;              // the current step
  uint64_t digest_ = 0;            // of its call and those before, in place
  std::vector<uint64_t> reached_;  // by rank: the last known number of steps reached
  std::vector<const void*> sources_;
};

}  // namespace mcr::shm
