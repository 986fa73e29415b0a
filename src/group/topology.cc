// SPDX-License-Identifier: Apache-2.0
#include "group/topology.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace mcr {

namespace {

constexpr std::size_t kMostDimensions = 16;
constexpr int kNowhere = -1;

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorCode::InvalidArgument, "topology: " + text); }

void check(const Dimension& dimension, std::size_t index) {
  const std::string which = "dimensions[" + std::to_string(index) + "]";
  if (dimension.name.empty()) refuse(which + ".name: expected a text, got an empty one");
  if (dimension.size < 1) refuse(which + ".size: expected at least 1, got " + std::to_string(dimension.size));
  if (dimension.bandwidth < 0) refuse(which + ".bandwidth: expected at least 0 bytes per second");
  if (dimension.latency < 0) refuse(which + ".latency: expected at least 0 ns");
}

std::string shape_of(const std::vector<Dimension>& dimensions) {
  const auto text = [](const Dimension& one) { return std::to_string(one.size) + " " + one.name; };
  return joined(dimensions, text, " x ");
}

Topology flat(const std::string& name, int size, std::vector<int> ranks = {}) {
  return {{{.name = name, .size = size}}, size, std::move(ranks)};
}

}  // namespace

Topology::Topology(std::vector<Dimension> dimensions, int size, std::vector<int> ranks)
    : dimensions_(std::move(dimensions)), ranks_(std::move(ranks)) {
  if (dimensions_.empty() || dimensions_.size() > kMostDimensions) {
    refuse("expected 1 to " + std::to_string(kMostDimensions) + " dimensions, got " +
           std::to_string(dimensions_.size()));
  }
  int64_t product = 1;
  for (std::size_t i = 0; i < dimensions_.size(); ++i) {
    check(dimensions_[i], i);
    const auto same = [&](const Dimension& other) { return other.name == dimensions_[i].name; };
    const auto end = dimensions_.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::any_of(dimensions_.begin(), end, same)) {
      refuse("dimensions[" + std::to_string(i) + "].name: expected a new one, got '" + dimensions_[i].name + "' again");
    }
    product *= dimensions_[i].size;
    if (product > size) break;
  }
  if (product != size) {
    refuse("expected dimensions whose sizes make " + std::to_string(size) + " ranks, got " + shape_of(dimensions_));
  }
  if (ranks_.empty()) {
    ranks_.resize(static_cast<std::size_t>(size));
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }
  if (ranks_.size() != static_cast<std::size_t>(size)) {
    refuse("ranks: expected " + std::to_string(size) + ", got " + std::to_string(ranks_.size()));
  }
  places_.assign(ranks_.size(), kNowhere);
  for (std::size_t place = 0; place < ranks_.size(); ++place) {
    const int rank = ranks_[place];
    if (rank < 0 || rank >= size) {
      refuse("ranks: expected 0 to " + std::to_string(size - 1) + ", got " + std::to_string(rank));
    }
    int& its = places_[static_cast<std::size_t>(rank)];
    if (its != kNowhere) refuse("ranks: expected each once, got " + std::to_string(rank) + " twice");
    its = static_cast<int>(place);
  }
}

Topology Topology::of_hosts(std::span<const int> hosts) {
  const int size = static_cast<int>(hosts.size());
  std::map<int, std::vector<int>> members;
  for (int rank = 0; rank < size; ++rank) members[hosts[static_cast<std::size_t>(rank)]].push_back(rank);
  const auto each = members.empty() ? std::size_t{0} : members.begin()->second.size();
  const auto uneven = [&](const auto& host) { return host.second.size() != each; };
  if (std::any_of(members.begin(), members.end(), uneven)) return flat("ranks", size);
  if (members.size() == 1) return flat("host", size);
  if (each == 1) return flat("rail", size);
  // Hosts are ordered by their first rank, so that the grid does not depend on their numbers.
  std::vector<std::vector<int>> rows;
  for (auto& [_, row] : members) rows.push_back(std::move(row));
  std::sort(rows.begin(), rows.end());
  std::vector<int> ranks;
  for (const auto& row : rows) ranks.insert(ranks.end(), row.begin(), row.end());
  return {{{.name = "rail", .size = static_cast<int>(rows.size())}, {.name = "host", .size = static_cast<int>(each)}},
          size,
          std::move(ranks)};
}

Topology Topology::of_members(std::span<const int> members) const {
  const int size = static_cast<int>(members.size());
  std::vector<std::vector<int>> found(dimensions_.size());  // the coordinates that occur
  std::map<std::vector<int>, int> found_at;
  for (int i = 0; i < size; ++i) {
    auto position = coordinates(members[static_cast<std::size_t>(i)]);
    for (std::size_t d = 0; d < position.size(); ++d) found[d].push_back(position[d]);
    found_at[std::move(position)] = i;
  }
  std::size_t product = 1;
  auto dimensions = dimensions_;
  for (std::size_t d = 0; d < found.size(); ++d) {
    std::sort(found[d].begin(), found[d].end());
    found[d].erase(std::unique(found[d].begin(), found[d].end()), found[d].end());
    dimensions[d].size = static_cast<int>(found[d].size());
    product *= found[d].size();
  }
  if (product != members.size() || found_at.size() != members.size()) return flat("ranks", size);
  std::vector<int> ranks;  // ranks in the order of their coordinates, the last changing fastest, as the map is sorted
  for (const auto& [_, rank] : found_at) ranks.push_back(rank);
  return {std::move(dimensions), size, std::move(ranks)};
}

std::size_t Topology::index_of(std::string_view name) const {
  for (std::size_t i = 0; i < dimensions_.size(); ++i) {
    if (dimensions_[i].name == name) return i;
  }
  refuse("expected one of the dimensions " + joined(dimensions_, &Dimension::name) + ", got '" + std::string(name) +
         "'");
}

int Topology::stride(std::size_t dimension) const {
  int stride = 1;
  for (std::size_t i = dimension + 1; i < dimensions_.size(); ++i) stride *= dimensions_[i].size;
  return stride;
}

int Topology::index_of(int rank) const {
  if (rank < 0 || rank >= size()) {
    refuse("expected a rank from 0 to " + std::to_string(size() - 1) + ", got " + std::to_string(rank));
  }
  return places_[static_cast<std::size_t>(rank)];
}

std::vector<int> Topology::coordinates(int rank) const {
  const int index = index_of(rank);
  std::vector<int> result;
  for (std::size_t i = 0; i < dimensions_.size(); ++i) result.push_back(index / stride(i) % dimensions_[i].size);
  return result;
}

std::vector<int> Topology::line(int rank, std::size_t dimension) const {
  if (dimension >= dimensions_.size()) {
    refuse("expected a dimension from 0 to " + std::to_string(dimensions_.size() - 1) + ", got " +
           std::to_string(dimension));
  }
  const int step = stride(dimension), first = index_of(rank) - coordinates(rank)[dimension] * step;
  std::vector<int> result;
  for (int i = 0; i < dimensions_[dimension].size; ++i) {
    result.push_back(ranks_[static_cast<std::size_t>(first + i * step)]);
  }
  return result;
}

}  // namespace mcr
