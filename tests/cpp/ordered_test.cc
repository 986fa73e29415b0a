// SPDX-License-Identifier: Apache-2.0
// Collectives in chunks with orders of their own: op x dtype x reduction x grid x order x size, run by the interpreter.
#include "algorithms/ordered.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/ops.h"
#include "check.h"
#include "choose/themis.h"
#include "group/topology.h"
#include "interpreter.h"
#include "memory.h"

namespace {

using namespace mcr;
using memory::Ranks;
using memory::Setting;
using Sizes = std::vector<int>;
using Order = std::vector<uint8_t>;

constexpr Op kServed[] = {Op::all_reduce, Op::reduce_scatter, Op::all_gather};
constexpr int64_t kCounts[] = {1, 5, 24, 77};

int ranks_of(const Sizes& sizes) { return std::accumulate(sizes.begin(), sizes.end(), 1, std::multiplies<>()); }

// Steps of all chunks in turn.
ChunkOrders in_turn(Op op, std::vector<Order> orders) {
  ChunkOrders made{std::move(orders), {}};
  const std::size_t steps = made.orders[0].size() * (op == Op::all_reduce ? 2 : 1);
  for (std::size_t index = 0; index < steps; ++index) {
    for (std::size_t chunk = 0; chunk < made.orders.size(); ++chunk) {
      made.issues.emplace_back(static_cast<uint16_t>(chunk), static_cast<uint8_t>(index));
    }
  }
  return made;
}

ChunkOrders of_plan(const themis::Plan& plan) {
  ChunkOrders made{plan.orders, {}};
  for (const auto& step : plan.steps) made.issues.emplace_back(step.chunk, step.index);
  return made;
}

// Some dimensions make reduce_scatters by all_to_alls.
std::vector<bool> exchanges(std::size_t dimensions, uint32_t seed) {
  std::vector<bool> made;
  for (std::size_t k = 0; k < dimensions; ++k) made.push_back((seed >> (1 + k)) % 2 == 1);
  return made;
}

// The ranks at the points of the grid, in some order.
std::vector<int> turned(int size, uint32_t seed) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin(), ranks.end(), std::mt19937(seed));
  return ranks;
}

// The same grid as a topology, whose outermost dimension comes first.
Topology topology_of(const Grid& grid) {
  std::vector<Dimension> dimensions;
  for (const int size : grid.sizes) {
    dimensions.insert(dimensions.begin(), {.name = std::to_string(dimensions.size()), .size = size});
  }
  return {dimensions, ranks_of(grid.sizes), grid.ranks};
}

// Two calls in flight on the same communicators. Half of the grids have their ranks in another order.
bool agree(const Setting& setting, const Sizes& sizes, const ChunkOrders& chunks, uint32_t seed) {
  const bool turns = seed / 2 % 2 == 1;
  const Grid grid{sizes, turns ? turned(setting.size, seed) : std::vector<int>{}, exchanges(sizes.size(), seed)};
  const Topology topology = topology_of(grid);
  std::vector<Ranks> want, got;
  std::vector<Schedule> schedules(static_cast<std::size_t>(setting.size));
  for (uint32_t call = 0; call < 2; ++call) {
    want.emplace_back(setting, seed + call);
    got.emplace_back(setting, seed + call);
    interpreter::perform(want.back().calls);
    for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
      ordered(got.back().calls[rank], grid, chunks, schedules[rank]);
    }
  }
  for (const auto& task : schedules[0].tasks()) CHECK(task.kind != Task::Kind::Issue || task.late);
  const auto problem = interpreter::run(
      schedules, seed, [&](int rank, uint8_t part) { return topology.line(rank, sizes.size() - 1 - part); });
  if (!problem.empty()) check::failed("schedule", 0, setting.text() + ": " + problem);
  return problem.empty() && want == got;
}

template <class Check>  // check(op, dtype, red)
void each_form(const Check& check) {
  for (const auto op : kServed) {
    for (std::size_t d = 0; d < kDTypes.size(); ++d) {
      for (std::size_t r = 0; r < (row(op).is(kReduces) ? kReductions.size() : 1); ++r) {
        const auto dtype = static_cast<DType>(d);
        const auto red = static_cast<RedOp>(r);
        Call call;
        call.op = op, call.dtype = dtype, call.red = red;
        if (has_ordered(call) && (!row(op).is(kReduces) || defined(dtype, red))) check(op, dtype, red);
      }
    }
  }
}

}  // namespace

TEST(every_order_of_two_three_and_four_dimensions) {
  uint32_t seed = 0;
  for (const Sizes& sizes : {Sizes{2, 2}, {2, 3}, {3, 2, 2}, {2, 3, 2, 2}}) {
    for (const auto op : kServed) {
      Order order(sizes.size());
      std::iota(order.begin(), order.end(), uint8_t{0});
      do {
        for (const int64_t count : kCounts) {
          const Setting setting{op, DType::Int, RedOp::SUM, ranks_of(sizes), count, 0, false};
          if (!agree(setting, sizes, in_turn(op, {order}), seed += 2)) check::failed("order", 0, setting.text());
        }
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
}

TEST(chunks_with_different_orders) {
  uint32_t seed = 1;
  each_form([&](Op op, DType dtype, RedOp red) {
    for (const int64_t count : kCounts) {
      const Setting setting{op, dtype, red, 12, count, 0, false, row(op).is(kReduces)};
      const auto chunks = in_turn(op, {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}, {0, 1, 2}, {2, 1, 0}});
      if (!agree(setting, {2, 3, 2}, chunks, seed += 2)) check::failed("chunks", 0, setting.text());
    }
  });
}

TEST(random_grids_orders_and_sizes) {
  std::mt19937 generator(7);
  const auto below = [&](int limit) { return static_cast<int>(generator() % static_cast<uint32_t>(limit)); };
  for (uint32_t turn = 0; turn < 24; ++turn) {
    Sizes sizes(static_cast<std::size_t>(2 + below(3)), 2);
    for (auto& size : sizes) size += ranks_of(sizes) > 16 ? 0 : below(2);
    Order order(sizes.size());
    std::iota(order.begin(), order.end(), uint8_t{0});
    std::vector<Order> orders;
    for (int chunk = 1 + below(6); chunk > 0; --chunk) {
      std::shuffle(order.begin(), order.end(), generator);
      orders.push_back(order);
    }
    const auto op = kServed[below(3)];
    const Setting setting{op, DType::Int, RedOp::SUM, ranks_of(sizes), 1 + below(50), 0, false};
    if (!agree(setting, sizes, in_turn(op, orders), 2 * turn)) check::failed("random", 0, setting.text());
  }
}

TEST(plans_of_themis) {
  uint32_t seed = 2;
  using themis::Dimension;
  for (const auto op : kServed) {
    for (const auto policy : {themis::Policy::Baseline, themis::Policy::Fifo, themis::Policy::Scf}) {
      for (const int chunks : {1, 4, 9}) {
        const std::vector<Dimension> network = {{Dimension::Kind::Switch, 4, 400, 0},
                                                {Dimension::Kind::Ring, 3, 200, 0}};
        const auto found = plan(network, {op, 1'000'000, 2}, policy, chunks);
        const Setting setting{op, DType::Long, RedOp::SUM, 12, 100, 0, false};
        if (!agree(setting, {4, 3}, of_plan(found), seed += 2)) check::failed("plan", 0, setting.text());
      }
    }
  }
}

TEST(forms) {
  Call call;
  const auto has = [&](Op op, RedOp red, bool vectored) {
    call.op = op, call.dtype = DType::Float, call.red = red, call.vectored = vectored;
    return has_ordered(call);
  };
  CHECK(has(Op::all_reduce, RedOp::SUM, false) && has(Op::reduce_scatter, RedOp::MAX, false));
  CHECK(has(Op::all_gather, RedOp::SUM, false) && !has(Op::all_gather, RedOp::SUM, true));
  CHECK(!has(Op::all_reduce, RedOp::AVG, false) && !has(Op::broadcast, RedOp::SUM, false));
  CHECK(!has(Op::all_to_all, RedOp::SUM, false) && !has(Op::reduce, RedOp::SUM, false));
}
