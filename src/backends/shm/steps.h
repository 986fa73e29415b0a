// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "backends/shm/blocks.h"
#include "backends/shm/segment.h"

namespace mcr::shm {

/// Small collectives. A collective is a step: each rank writes what it gives, and the number of the step, into its own
/// slot, and reads the slots of the others. A slot is used again kSlots steps later; a rank that has reached step n has
/// finished step n - 1. One thread at a time.
class Steps {
 public:
  /// How far a call has come.
  struct Position {
    bool written = false;
    int next = 0;  // the rank to read next, counted from this one
  };

  Steps(Segment& segment, int rank);
  static bool takes(const Blocks& blocks) { return blocks.total() <= Slot::kBytes; }

  /// Makes what progress it can without waiting. True once complete. Sets `published` if ranks may wait for what it
  /// did.
  bool advance(const Call& call, Position& position, bool& published);

 private:
  bool reached(int rank, uint64_t steps);
  bool writable();
  void write(const Blocks& blocks);
  bool read(const Call& call, const Blocks& blocks, Position& position);
  bool combine(const Call& call, const Blocks& blocks);

  Segment& segment_;
  const int rank_, size_;
  uint64_t step_ = 0;              // the present one
  std::vector<uint64_t> reached_;  // by rank: how many steps it is known to have reached
  std::vector<const void*> sources_;
};

}  // namespace mcr::shm
