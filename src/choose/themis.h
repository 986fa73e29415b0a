// SPDX-License-Identifier: Apache-2.0
// Themis (ISCA'22): which order of a network's dimensions each chunk of a collective takes, and how long it takes, in
// whole numbers: equal inputs give equal plans on all ranks.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/ops.h"

namespace mcr::themis {

/// One dimension of a network. Each rank communicates with the `size` ranks of its line.
struct Dimension {
  enum class Kind : uint8_t { Switch, Ring, FullyConnected };

  Kind kind = Kind::Switch;
  int size = 2;
  int64_t bandwidth = 0;  // bytes per second of one rank in one direction, over all its links
  int64_t latency = 0;    // picoseconds of one step
  int links = 1;          // of one rank; a ring with one link goes in one direction
};

inline constexpr std::array<std::string_view, 3> kKinds = {"switch", "ring", "fully_connected"};

/// Baseline: all chunks in one order, first come first served. Fifo, Scf: Algorithm 1, and in each dimension the first
/// chunk, or the one with the smallest part first.
enum class Policy : uint8_t { Baseline, Fifo, Scf };

inline constexpr std::array<std::string_view, 3> kPolicies = {"baseline", "themis-fifo", "themis-scf"};

inline constexpr std::size_t kMostDimensions = 8;
inline constexpr int kMostSize = 1 << 16, kMostLinks = 1 << 16, kMostRanks = 1 << 24;
inline constexpr int64_t kMostBytes = int64_t{1} << 50, kMostBandwidth = int64_t{1} << 50;
inline constexpr int64_t kMostLatency = 1'000'000'000'000;  // ps: a second
inline constexpr int kMostChunks = 512;
inline constexpr int kMostInFlight = 1024;

/// The numbers of chunks that are worth a try: powers of two, and those times one and a half.
inline constexpr std::array kChunkCounts = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512};

/// A collective over all dimensions: all_reduce, reduce_scatter, all_gather or all_to_all.
struct Request {
  Op op = Op::all_reduce;
  int64_t bytes = 0;  // the whole data of a rank: the input, or the output of an all_gather
  int in_flight = 1;  // steps that run at once in a dimension; they share its bandwidth
};

/// The indexes of dimensions, in the order in which a chunk goes through them; of an all_reduce its reduce_scatters,
/// and the all_gathers follow in reverse.
using Order = std::vector<uint8_t>;

/// One step of one chunk, in picoseconds from the start.
struct Step {
  uint16_t chunk;
  uint8_t index, dimension;   // index: of the chunk's steps
  int64_t ready, start, end;  // ready: the step before it has ended
  bool operator==(const Step&) const = default;
};

struct Plan {
  Policy policy = Policy::Baseline;
  int chunks = 1;
  std::vector<Order> orders = {};  // of each chunk
  std::vector<Step> steps = {};    // by start, dimension, chunk, index: the order in which all ranks issue them
  std::vector<int64_t> work = {};  // ps, of each dimension: its bytes at full bandwidth, without latencies
  int64_t makespan = 0;            // ps
};

/// Throws InvalidArgument for networks and requests without a meaning.
void check(std::span<const Dimension> network, const Request& request, int chunks);

/// The plan of one policy with `chunks` equal chunks.
Plan plan(std::span<const Dimension> network, const Request& request, Policy policy, int chunks);

/// The plan with the shortest makespan; of equal ones the first by policies, then by chunks.
Plan best(std::span<const Dimension> network, const Request& request, std::span<const Policy> policies,
          std::span<const int> chunks);

}  // namespace mcr::themis
