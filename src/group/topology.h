// SPDX-License-Identifier: Apache-2.0
// How the ranks of a group lie in a grid: hosts, and the ranks of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mcr {

/// Ranks that differ in this coordinate alone reach each other over one kind of link.
struct Dimension {
  std::string name;
  int size = 1;
  int64_t bandwidth = 0;     // bytes per second of one rank; 0: not known
  int64_t latency = 0;       // ns of one message; 0: not known
  std::string backend = {};  // which library serves it; empty: as the group chooses
  bool operator==(const Dimension&) const = default;
};

/// The dimensions of a group's ranks, the outermost first, and each rank's place. A value: equal on all ranks.
class Topology {
 public:
  /// `ranks` has the group rank at each place of the grid, the last coordinate changing fastest; empty: 0, 1, 2, ...
  /// Throws InvalidArgument unless each of `size` ranks has one place, and names, sizes and figures are in range.
  Topology(std::vector<Dimension> dimensions, int size, std::vector<int> ranks = {});

  /// Of ranks with these hosts: "rail" over the hosts and "host" within one; "host" alone on one host, "rail" alone on
  /// hosts with one rank each. One dimension "ranks" where hosts have different numbers of ranks.
  static Topology of_hosts(std::span<const int> hosts);

  /// That of some of the ranks, which become 0, 1, 2, ... in this order: the same dimensions, shorter, where they are a
  /// grid; else one dimension "ranks".
  Topology of_members(std::span<const int> members) const;

  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  const std::vector<int>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  /// Throws InvalidArgument for a name that no dimension has.
  std::size_t index_of(std::string_view name) const;
  std::vector<int> coordinates(int rank) const;
  /// The ranks that differ from this one in one coordinate alone, by that coordinate; it is among them.
  std::vector<int> line(int rank, std::size_t dimension) const;

  bool operator==(const Topology&) const = default;

 private:
  int stride(std::size_t dimension) const;
  int place_of(int rank) const;

  std::vector<Dimension> dimensions_;
  std::vector<int> ranks_;
};

}  // namespace mcr
