// SPDX-License-Identifier: Apache-2.0
// Collectives over a grid of ranks, in chunks that go through the grid's dimensions in orders of their own.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "algorithms/schedule.h"

namespace mcr {

/// The chunks of a call, equal on all ranks. A function of the topology and of what all ranks know of the call.
struct ChunkOrders {
  std::vector<std::vector<uint8_t>> orders;          // of each chunk, its dimensions; of an all_reduce the first half
  std::vector<std::pair<uint16_t, uint8_t>> issues;  // chunk, index of its step: the order in which all are issued
};

/// The grid of a group's ranks. A value, equal on all ranks.
struct Grid {
  std::vector<int> sizes;
  std::vector<int> ranks = {};       // the group rank at each point, the first coordinate fastest; empty: 0, 1, 2, ...
  std::vector<bool> exchanges = {};  // of each dimension: it makes a reduce_scatter by an all_to_all; empty: none does
};

/// Whether ordered() has a form of the operation's calls: it can be cut into chunks, and every rank has the same part
/// in it, towards all others alike.
bool has_ordered(Op op);
/// Whether ordered() has a form of the call. A function of the operation, type and reduction. Vectored calls and
/// reductions that cannot be done in steps (AVG, PREMUL_SUM) have none.
bool has_ordered(const Call& call);

/// Adds the tasks of an all_reduce, reduce_scatter or all_gather: Issues whose part is the dimension on whose
/// communicator, of the rank's line in it (Topology::line), they are issued; copies, and memory. All Issues are late,
/// so that one executor can keep them in order. All ranks have the same tasks. The grid outlives the schedule.
void ordered(const Call& call, const Grid& grid, const ChunkOrders& chunks, Schedule& schedule);

}  // namespace mcr
