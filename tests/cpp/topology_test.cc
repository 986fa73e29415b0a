// SPDX-License-Identifier: Apache-2.0
#include "group/topology.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"

namespace {

using namespace mcr;
using Ranks = std::vector<int>;

Dimension dimension(const std::string& name, int size) { return {.name = name, .size = size}; }

template <class Body>
std::string refusal(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code() == ErrorCode::InvalidArgument ? error.what() : "another error";
  }
  return "no error";
}

std::string refused(std::vector<Dimension> dimensions, int size, Ranks ranks = {}) {
  return refusal([&] { Topology(std::move(dimensions), size, std::move(ranks)); });
}

}  // namespace

TEST(ranks_have_coordinates_and_lines) {
  const Topology grid({dimension("a", 2), dimension("b", 3), dimension("c", 2)}, 12);
  CHECK(grid.coordinates(0) == Ranks{0, 0, 0});
  CHECK(grid.coordinates(7) == Ranks{1, 0, 1});
  CHECK(grid.coordinates(11) == Ranks{1, 2, 1});
  CHECK(grid.line(7, 0) == Ranks{1, 7} && grid.line(7, 1) == Ranks{7, 9, 11} && grid.line(7, 2) == Ranks{6, 7});
  CHECK(grid.index_of("b") == 1);
  const Topology turned({dimension("a", 2), dimension("b", 2)}, 4, {0, 2, 1, 3});
  CHECK(turned.coordinates(2) == Ranks{0, 1} && turned.line(2, 0) == Ranks{2, 3} && turned.line(2, 1) == Ranks{0, 2});
}

// Every rank lies on one line of each dimension, and all ranks of a line see the same one.
TEST(lines_divide_the_ranks) {
  for (const auto& sizes : {std::array{1, 1, 1}, std::array{2, 1, 3}, std::array{3, 4, 2}, std::array{1, 5, 1}}) {
    const int size = sizes[0] * sizes[1] * sizes[2];
    Ranks ranks(static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i) ranks[static_cast<std::size_t>(i)] = size - 1 - i;
    const Topology grid({dimension("a", sizes[0]), dimension("b", sizes[1]), dimension("c", sizes[2])}, size, ranks);
    for (int rank = 0; rank < size; ++rank) {
      for (std::size_t d = 0; d < 3; ++d) {
        const auto line = grid.line(rank, d);
        CHECK(line[static_cast<std::size_t>(grid.coordinates(rank)[d])] == rank);
        CHECK(static_cast<int>(line.size()) == sizes[d]);
        for (const int other : line) CHECK(grid.line(other, d) == line);
      }
    }
  }
}

TEST(topologies_that_make_no_sense_are_refused) {
  CHECK(check::has(refused({dimension("a", 2), dimension("b", 2)}, 3), "make 3 ranks", "2 a x 2 b"));
  CHECK(check::has(refused({}, 1), "1 to 16 dimensions, got 0"));
  CHECK(check::has(refused({dimension("a", 0)}, 0), "dimensions[0].size", "got 0"));
  CHECK(check::has(refused({dimension("a", 1), dimension("a", 1)}, 1), "dimensions[1].name", "'a' again"));
  CHECK(check::has(refused({dimension("", 1)}, 1), "dimensions[0].name"));
  CHECK(check::has(refused({dimension("a", 2)}, 2, {0}), "expected 2, got 1"));
  CHECK(check::has(refused({dimension("a", 2)}, 2, {0, 2}), "0 to 1, got 2"));
  CHECK(check::has(refused({dimension("a", 2)}, 2, {1, 1}), "1 twice"));
  CHECK(check::has(refused({dimension("a", 1 << 30), dimension("b", 1 << 30), dimension("c", 16)}, 4), "4 ranks"));
  CHECK(check::has(refused({{.name = "a", .size = 2, .bandwidth = -1}}, 2), "bandwidth"));
  CHECK(check::has(refused({{.name = "a", .size = 2, .latency = -1}}, 2), "latency"));
  const Topology grid({dimension("a", 2)}, 2);
  CHECK(check::has(refusal([&] { grid.index_of("b"); }), "dimensions a", "'b'"));
  CHECK(check::has(refusal([&] { grid.coordinates(2); }), "0 to 1, got 2"));
  CHECK(check::has(refusal([&] { grid.line(0, 1); }), "0 to 0, got 1"));
}

TEST(hosts_make_dimensions) {
  const auto found = [](const Ranks& hosts) { return Topology::of_hosts(hosts); };
  CHECK(found({7, 7, 7}) == Topology({dimension("host", 3)}, 3));
  CHECK(found({0, 1, 2}) == Topology({dimension("rail", 3)}, 3));
  CHECK(found({0, 0, 1, 1}) == Topology({dimension("rail", 2), dimension("host", 2)}, 4));
  CHECK(found({5, 3, 5, 3}) == Topology({dimension("rail", 2), dimension("host", 2)}, 4, {0, 2, 1, 3}));
  CHECK(found({0, 0, 1}) == Topology({dimension("ranks", 3)}, 3));
  CHECK(found({5, 3, 5, 3}).line(3, 1) == Ranks{1, 3});
}

TEST(groups_have_a_part_of_the_dimensions) {
  const Topology grid({dimension("a", 2), dimension("b", 3)}, 6);
  CHECK(grid.of_members(Ranks{0, 1, 2, 3, 4, 5}) == grid);
  CHECK(grid.of_members(Ranks{0, 2, 3, 5}) == Topology({dimension("a", 2), dimension("b", 2)}, 4));
  CHECK(grid.of_members(Ranks{1, 4}) == Topology({dimension("a", 2), dimension("b", 1)}, 2));
  CHECK(grid.of_members(Ranks{4, 1}) == Topology({dimension("a", 2), dimension("b", 1)}, 2, {1, 0}));
  CHECK(grid.of_members(Ranks{0, 1, 3}) == Topology({dimension("ranks", 3)}, 3));
  CHECK(grid.of_members(Ranks{0, 4}) == Topology({dimension("ranks", 2)}, 2));
}
