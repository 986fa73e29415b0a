// SPDX-License-Identifier: Apache-2.0
// The arrangement of a group's ranks in a grid: hosts, and the ranks of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mcr {

/// Ranks that differ only in this coordinate reach each other over one kind of link.
struct Dimension {
  std::string name;
  int size = 1;
  int64_t bandwidth = 0;     // bytes per second of one rank; 0: unknown
  int64_t latency = 0;       // ns per message; 0: unknown
  std::string backend = {};  // the library that serves it; empty: the group's choice
  bool operator==(const Dimension&) const = default;
};

/// The dimensions of a group's ranks, outermost first, and each rank's coordinates. A value: equal on all ranks.
class Topology {
 public:
  /// `ranks` has the group rank at each point of the grid, the last coordinate changing fastest; empty: 0, 1, 2, ...
  /// Throws InvalidArgument unless each of `size` ranks occurs once, and names, sizes and figures are in range.
  Topology(std::vector<Dimension> dimensions, int size, std::vector<int> ranks = {});

  /// The topology of ranks with these hosts: "rail" over the hosts and "host" within one; only "host" on one host, only
  /// "rail" with one rank per host. One dimension "ranks" if hosts have different numbers of ranks.
  static Topology of_hosts(std::span<const int> hosts);

  /// The topology of some of the ranks, renumbered 0, 1, 2, ... in this order: these dimensions, shortened, if the
  /// members form a grid; else one dimension "ranks".
  Topology of_members(std::span<const int> members) const;

  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  const std::vector<int>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  /// Throws InvalidArgument for a name that no dimension has.
  std::size_t index_of(std::string_view name) const;
  std::vector<int> coordinates(int rank) const;
  /// The ranks that differ from this one only in that coordinate, in its order; includes this one.
  std::vector<int> line(int rank, std::size_t dimension) const;

  bool operator==(const Topology&) const = default;

 private:
  int stride(std::size_t dimension) const;
  int index_of(int rank) const;

  std::vector<Dimension> dimensions_;
  std::vector<int> ranks_;
  std::vector<int> places_;  // of each rank in ranks_
};

}  // namespace mcr
