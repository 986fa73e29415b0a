// SPDX-License-Identifier: Apache-2.0
// Plans of Themis: the paper's example, equal to the general simulator, correct data, and never worse than the
// baseline.
#include "choose/themis.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "algorithms/layout.h"
#include "base/error.h"
#include "check.h"
#include "choose/simulate.h"
#include "group/topology.h"

namespace {

using namespace mcr;
using themis::Dimension;
using themis::Order;
using themis::Policy;
using themis::Request;
using Kind = Dimension::Kind;
using Network = std::vector<Dimension>;

constexpr int64_t kGbps = 125'000'000;  // bytes per second
constexpr int64_t kMs = 1'000'000'000;  // ps
constexpr Op kServed[] = {Op::all_reduce, Op::reduce_scatter, Op::all_gather, Op::all_to_all};
constexpr Policy kAll[] = {Policy::Baseline, Policy::Fifo, Policy::Scf};
constexpr int kRandom = 1000;

// 64 MB of 256 MB take a millisecond in the first dimension.
Network figure5() { return {{Kind::Switch, 4, 384 * kGbps, 0}, {Kind::Switch, 4, 192 * kGbps, 0}}; }

struct Case {
  Network network;
  Request request;
  int chunks;
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t between(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(engine_); }

  Case next(int most_ranks) {
    Case made;
    int ranks = 1;
    const int64_t dimensions = between(1, 4);
    while (std::cmp_less(made.network.size(), dimensions) && ranks * 2 <= most_ranks) {
      const auto size = static_cast<int>(between(2, std::min(most_ranks / ranks, 8)));
      const int64_t latency = between(0, 1) * between(1, 2'000'000);
      made.network.push_back(
          {static_cast<Kind>(between(0, 2)), size, between(1, 3000) * kGbps, latency, static_cast<int>(between(1, 4))});
      ranks *= size;
    }
    const int64_t bytes = int64_t{1} << between(0, 30);
    made.request = {kServed[between(0, 3)], bytes + between(0, bytes), static_cast<int>(between(1, 9))};
    made.chunks = static_cast<int>(between(1, 40));
    return made;
  }

 private:
  std::mt19937 engine_;
};

std::string name(std::size_t dimension) { return "dim" + std::to_string(dimension); }

// The costs of steps by their definition, rounded up to units of time.
class Costs {
 public:
  explicit Costs(const Case& of) : of_(of), exchanges_(of.request.op == Op::all_to_all) {
    Wide most = 0;
    for (const auto& one : of.network) {
      const auto [steps, blocks] = algorithm_of(one);
      const Wide sent = Wide{of.request.bytes} * blocks * kSecond / (Wide{one.size} * one.bandwidth);
      most += 2 * (sent + Wide{one.latency} * steps * themis::kMostChunks);
    }
    while (most / unit_ >= Wide{1} << 39) unit_ *= 2;
  }

  int64_t unit() const { return unit_; }  // ps
  int64_t latency(std::size_t k) const {
    return divide_up(Wide{of_.network[k].latency} * algorithm_of(of_.network[k]).steps, unit_);
  }
  // The dimension and the work of each step of a chunk.
  std::vector<std::pair<uint8_t, int64_t>> path(const Order& order) const {
    std::vector<std::pair<uint8_t, int64_t>> steps;
    Wide parts = of_.chunks;
    // Each reduce_scatter divides the data of the later ones. All_gathers are the same steps backwards.
    const bool gathers = of_.request.op == Op::all_gather;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto k = order[gathers ? order.size() - 1 - i : i];
      const auto& one = of_.network[k];
      const Wide bytes = Wide{of_.request.bytes} * algorithm_of(one).blocks;
      steps.emplace_back(k, divide_up(bytes * kSecond, parts * one.size * one.bandwidth * unit_));
      if (!exchanges_) parts *= one.size;
    }
    if (of_.request.op == Op::all_reduce) {
      const auto back = std::vector(steps.rbegin(), steps.rend());
      steps.insert(steps.end(), back.begin(), back.end());
    }
    if (gathers) std::reverse(steps.begin(), steps.end());
    return steps;
  }

 private:
  __extension__ using Wide = __int128;
  static constexpr int64_t kSecond = 1000 * kMs;
  // Of a dimension's collective: its steps, and how many blocks, of one for each rank, a rank sends.
  struct Algorithm {
    int64_t steps, blocks;
  };

  Algorithm algorithm_of(const Dimension& one) const {
    Algorithm found{one.kind == Kind::Ring ? one.size - 1 : 1, one.size - 1};
    if (one.kind == Kind::Ring && exchanges_) {  // each block passes the ranks on its way
      found = {0, 0};
      for (int64_t distance = 1; distance < one.size; ++distance) {
        const auto hops = one.links > 1 ? std::min(distance, one.size - distance) : distance;
        found = {std::max(found.steps, hops), found.blocks + hops};
      }
    } else if (one.kind == Kind::Switch && !exchanges_) {  // halving
      while (int64_t{1} << found.steps < one.size) ++found.steps;
    }
    return found;
  }
  static int64_t divide_up(Wide value, Wide by) { return static_cast<int64_t>((value + by - 1) / by); }

  const Case& of_;
  const bool exchanges_;
  int64_t unit_ = 1;
};

// The general simulator's times of a plan: a job for each chunk, an Issue for each step.
Simulation general(const Case& of, const Costs& costs, const themis::Plan& plan) {
  CostModel model;
  for (std::size_t k = 0; k < of.network.size(); ++k) {
    const auto number = model.add({.name = name(k), .slots = of.request.in_flight});
    const auto latency = costs.latency(k);
    model.add({Task::Kind::Issue, Op::broadcast, false, {}, name(k)},
              {{}, latency, int64_t{1} << 20, latency, {{number, kUnit}}});
  }
  std::vector<Schedule> schedules(plan.orders.size());
  std::vector<Job> jobs;
  for (std::size_t chunk = 0; chunk < schedules.size(); ++chunk) {
    Schedule::Ids after;
    for (const auto& [dimension, work] : costs.path(plan.orders[chunk])) {
      Call call;
      call.op = Op::broadcast;
      call.out = {nullptr, work};
      after = {schedules[chunk].issue(call, after, dimension)};
    }
    Job job{&schedules[chunk]};
    for (std::size_t k = 0; k < of.network.size(); ++k) job.parts.push_back({name(k)});
    jobs.push_back(std::move(job));
  }
  const auto order = plan.policy == Policy::Scf ? QueueOrder::Shortest : QueueOrder::Arrival;
  return simulate(jobs, model, {{{0, 1}}, false, order, false});
}

bool agrees(const Case& of, const themis::Plan& plan) {
  const Costs costs(of);
  const auto expected = general(of, costs, plan);
  const int64_t unit = costs.unit();
  bool equal = expected.end * unit == plan.makespan;
  for (const auto& step : plan.steps) {
    const auto& one = expected.tasks[step.chunk][step.index];
    equal = equal && one.ready * unit == step.ready && one.issued * unit == step.start && one.end * unit == step.end;
  }
  return equal;
}

bool same(const themis::Plan& one, const themis::Plan& other) {
  return one.policy == other.policy && one.chunks == other.chunks && one.orders == other.orders &&
         one.steps == other.steps && one.work == other.work && one.makespan == other.makespan;
}

// ---- data: all ranks' memory, step by step

// The ranks of a network. Rank numbers count along dimension 1 first.
struct Data {
  Data(const Network& network, Op op) : op(op), sizes(sizes_of(network)), ranks(product(sizes)), topology(of(sizes)) {}
  static std::vector<int> sizes_of(const Network& network) {
    std::vector<int> found;
    for (const auto& one : network) found.push_back(one.size);
    return found;
  }
  static int product(const std::vector<int>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), 1, std::multiplies<>());
  }
  // Its outermost dimension comes first.
  static Topology of(const std::vector<int>& sizes) {
    std::vector<mcr::Dimension> dimensions;
    for (const int size : sizes) {
      dimensions.insert(dimensions.begin(), {.name = std::to_string(dimensions.size()), .size = size});
    }
    return {dimensions, product(sizes)};
  }
  int coordinate(int rank, std::size_t k) const {
    for (std::size_t i = 0; i < k; ++i) rank /= sizes[i];
    return rank % sizes[k];
  }
  std::vector<int> line(int rank, std::size_t k) const { return topology.line(rank, sizes.size() - 1 - k); }

  Op op;
  std::vector<int> sizes;
  int ranks;
  Topology topology;
};

using Values = std::vector<std::vector<int64_t>>;  // [rank][element]

Values reduce_scatter(const Data& data, const Values& from, std::size_t k) {
  Values to(from.size());
  for (int rank = 0; rank < data.ranks; ++rank) {
    const std::size_t count = from[0].size() / static_cast<std::size_t>(data.sizes[k]);
    const auto start = static_cast<std::size_t>(data.coordinate(rank, k)) * count;
    to[static_cast<std::size_t>(rank)].assign(count, 0);
    for (const int peer : data.line(rank, k)) {
      for (std::size_t i = 0; i < count; ++i) {
        to[static_cast<std::size_t>(rank)][i] += from[static_cast<std::size_t>(peer)][start + i];
      }
    }
  }
  return to;
}

Values all_gather(const Data& data, const Values& from, std::size_t k) {
  Values to(from.size());
  for (int rank = 0; rank < data.ranks; ++rank) {
    for (const int peer : data.line(rank, k)) {
      const auto& piece = from[static_cast<std::size_t>(peer)];
      auto& whole = to[static_cast<std::size_t>(rank)];
      whole.insert(whole.end(), piece.begin(), piece.end());
    }
  }
  return to;
}

// Blocks whose receiver differs in dimension k go to the rank of the line with the receiver's coordinate. Each value
// says where it comes from and where it goes: sender * ranks + receiver.
Values exchange(const Data& data, const Values& from, std::size_t k) {
  Values to(from.size());
  for (int rank = 0; rank < data.ranks; ++rank) {
    for (const int peer : data.line(rank, k)) {
      for (const auto value : from[static_cast<std::size_t>(peer)]) {
        const int receiver = static_cast<int>(value % data.ranks);
        if (data.coordinate(receiver, k) == data.coordinate(rank, k))
          to[static_cast<std::size_t>(rank)].push_back(value);
      }
    }
  }
  return to;
}

// Runs the steps of one chunk, in the order of the plan, and compares with the operation's meaning.
bool correct(const Data& data, const themis::Plan& plan, uint16_t chunk) {
  const auto& order = plan.orders[chunk];
  const bool gathers = data.op == Op::all_gather, reduces = data.op == Op::reduce_scatter;
  const auto count = static_cast<std::size_t>(data.ranks);
  Order slices = order;
  if (gathers) std::reverse(slices.begin(), slices.end());
  const auto places = slice_places(data.sizes, slices);
  Values values(count, std::vector<int64_t>(count));
  for (std::size_t rank = 0; rank < count; ++rank) {
    for (std::size_t slice = 0; slice < count; ++slice) {
      const auto at = reduces ? static_cast<std::size_t>(places[slice]) : slice;
      values[rank][at] = static_cast<int64_t>(rank * count + slice);
    }
    if (gathers) values[rank] = {static_cast<int64_t>(rank)};
  }
  std::size_t made = 0;
  for (const auto& step : plan.steps) {
    if (step.chunk != chunk) continue;
    if (step.index != made) return false;
    const bool first_half = made < order.size();
    if (step.dimension != (first_half ? order[made] : order[2 * order.size() - 1 - made])) return false;
    ++made;
    if (data.op == Op::all_to_all) {
      values = exchange(data, values, step.dimension);
    } else if (gathers || !first_half) {
      values = all_gather(data, values, step.dimension);
    } else {
      values = reduce_scatter(data, values, step.dimension);
    }
  }
  bool right = made == order.size() * (data.op == Op::all_reduce ? 2 : 1);
  const auto sum = [&](std::size_t slice) {
    return static_cast<int64_t>(count * (count * (count - 1) / 2) + count * slice);
  };
  for (std::size_t rank = 0; rank < count; ++rank) {
    auto& mine = values[rank];
    if (reduces) {
      right = right && mine == std::vector{sum(rank)};
      continue;
    }
    right = right && mine.size() == count;
    if (data.op == Op::all_to_all) std::sort(mine.begin(), mine.end());
    for (std::size_t slice = 0; right && slice < count; ++slice) {
      if (data.op == Op::all_reduce) right = mine[slice] == sum(slice);
      if (gathers) right = mine[static_cast<std::size_t>(places[slice])] == static_cast<int64_t>(slice);
      if (data.op == Op::all_to_all) right = mine[slice] == static_cast<int64_t>(slice * count + rank);
    }
  }
  return right;
}

std::string problem(const Network& network, const Request& request, int chunks) {
  try {
    plan(network, request, Policy::Scf, chunks);
  } catch (const Error& error) {
    return error.code() == ErrorCode::InvalidArgument ? error.what() : "";
  }
  return "";
}

}  // namespace

TEST(figure_5) {
  const Request request{Op::all_reduce, 256'000'000, 1};
  const auto end = [&](Policy policy) { return plan(figure5(), request, policy, 4).makespan; };
  CHECK(end(Policy::Baseline) == 8 * kMs);
  CHECK(end(Policy::Fifo) == 8 * kMs);
  CHECK(end(Policy::Scf) == 7 * kMs);
  const auto found = plan(figure5(), request, Policy::Scf, 4);
  CHECK(found.orders == std::vector<Order>{{0, 1}, {1, 0}, {0, 1}, {0, 1}});
  CHECK(found.work == std::vector<int64_t>{13 * kMs / 2, 7 * kMs});
}

// Equal loads are equal at every size, and the same dimensions have the same order.
TEST(plans_do_not_depend_on_the_size) {
  const Network network = {{Kind::Ring, 4, 3000 * kGbps, 0},
                           {Kind::FullyConnected, 8, 1400 * kGbps, 0},
                           {Kind::Ring, 4, 1200 * kGbps, 0},
                           {Kind::Switch, 8, 800 * kGbps, 0}};
  for (const auto op : kServed) {
    const auto orders = plan(network, {op, 1'000'000'000, 1}, Policy::Scf, 64).orders;
    for (const int64_t bytes : {1000, 777'777, 123'456'789}) {
      CHECK(plan(network, {op, bytes, 1}, Policy::Scf, 64).orders == orders);
    }
  }
}

TEST(orders_of_every_length_have_a_place_for_each_slice) {
  const std::vector<std::vector<int>> shapes = {{2, 3}, {4, 2}, {2, 3, 2}, {3, 2, 4}, {2, 3, 2, 2}, {2, 2, 2, 3}};
  for (const auto& sizes : shapes) {
    Order order(sizes.size());
    std::iota(order.begin(), order.end(), uint8_t{0});
    int standard = 0;
    do {
      auto places = slice_places(sizes, order);
      Network network;
      for (const int size : sizes) network.push_back({Kind::Switch, size, kGbps, 0});
      for (const auto op : kServed) {
        themis::Plan made{.orders = {order}};
        const std::size_t steps = order.size() * (op == Op::all_reduce ? 2 : 1);
        for (std::size_t i = 0; i < steps; ++i) {
          const auto k = i < order.size() ? order[i] : order[2 * order.size() - 1 - i];
          made.steps.push_back({0, static_cast<uint8_t>(i), k, 0, 0, 0});
        }
        CHECK(correct(Data(network, op), made, 0));
      }
      standard += std::is_sorted(places.begin(), places.end()) ? 1 : 0;
      std::sort(places.begin(), places.end());
      for (std::size_t i = 0; i < places.size(); ++i) CHECK(places[i] == static_cast<int>(i));
    } while (std::next_permutation(order.begin(), order.end()));
    CHECK(standard == 1);  // the other orders need the permutation
  }
}

TEST(plans_agree_with_the_general_simulator) {
  Random random(1);
  for (int i = 0; i < kRandom; ++i) {
    const auto of = random.next(1 << 12);
    const auto policy = kAll[random.between(0, 2)];
    const auto found = plan(of.network, of.request, policy, of.chunks);
    CHECK(agrees(of, found));
    CHECK(same(found, plan(of.network, of.request, policy, of.chunks)));
  }
}

TEST(plans_move_the_right_data) {
  Random random(2);
  for (int i = 0; i < kRandom; ++i) {
    const auto of = random.next(48);
    const auto found = plan(of.network, of.request, kAll[random.between(0, 2)], of.chunks);
    std::set<Order> seen;
    for (uint16_t chunk = 0; chunk < of.chunks; ++chunk) {
      if (seen.insert(found.orders[chunk]).second) CHECK(correct(Data(of.network, of.request.op), found, chunk));
    }
    for (std::size_t j = 1; j < found.steps.size(); ++j) CHECK(found.steps[j - 1].start <= found.steps[j].start);
  }
}

TEST(the_best_plan_is_never_worse_than_the_baseline) {
  Random random(3);
  const int counts[] = {1, 2, 3, 4, 6, 8, 16, 32, 64};
  int better = 0;
  for (int i = 0; i < kRandom; ++i) {
    const auto of = random.next(1 << 12);
    const auto found = best(of.network, of.request, kAll, counts);
    const auto baseline = best(of.network, of.request, {kAll, 1}, counts);
    CHECK(found.makespan <= baseline.makespan);
    better += found.makespan < baseline.makespan ? 1 : 0;
    for (const int count : counts) {
      CHECK(found.makespan <= plan(of.network, of.request, kAll[i % 3], count).makespan);
    }
  }
  CHECK(better > kRandom / 10);
}

TEST(costs_of_steps) {
  const Network network = {{Kind::Ring, 5, kGbps, 1000, 2}, {Kind::Switch, 6, 2 * kGbps, 100}};
  using Times = std::vector<int64_t>;
  const auto times = [&](Op op) {
    Times found;
    for (const auto& step : plan(network, {op, 150'000, 1}, Policy::Baseline, 1).steps) {
      found.push_back(step.end - step.start);
    }
    return found;
  };
  CHECK(times(Op::all_reduce) == Times{960'004'000, 100'000'300, 100'000'300, 960'004'000});
  CHECK(times(Op::all_to_all) == Times{1'440'002'000, 500'000'100});  // 6 of 5 blocks: some pass two links
  CHECK(times(Op::all_gather) == Times{100'000'300, 960'004'000});
}

TEST(networks_and_requests_without_a_meaning) {
  const themis::Dimension good{Kind::Switch, 4, kGbps, 0};
  const Request request{Op::all_reduce, 1000, 1};
  CHECK(problem({good}, request, 1).empty());
  CHECK(check::has(problem({}, request, 1), "dimensions: expected 1 to 8, got 0"));
  CHECK(check::has(problem(Network(9, good), request, 1), "dimensions"));
  CHECK(check::has(problem({good, {Kind::Switch, 1, kGbps, 0}}, request, 1), "dimension 2: size: expected 2 to"));
  CHECK(check::has(problem({{Kind::Switch, 2, 0, 0}}, request, 1), "bandwidth"));
  CHECK(check::has(problem({{Kind::Switch, 2, 1, -1}}, request, 1), "latency"));
  CHECK(check::has(problem({{Kind::Switch, 2, 1, 0, 0}}, request, 1), "links"));
  CHECK(check::has(problem(Network(8, {Kind::Ring, 16, 1, 0}), request, 1), "ranks"));
  CHECK(check::has(problem({good}, {Op::broadcast, 1000, 1}, 1), "got broadcast"));
  CHECK(check::has(problem({good}, {Op::all_reduce, 0, 1}, 1), "bytes"));
  CHECK(check::has(problem({good}, {Op::all_reduce, 1, 0}, 1), "in flight"));
  CHECK(check::has(problem({good}, request, 513), "chunks"));
  CHECK(check::has(problem({{Kind::Switch, 4, 1, 0}}, {Op::all_reduce, int64_t{1} << 50, 1}, 1), "less than 50 days"));
  CHECK(problem({{Kind::Ring, 1 << 16, 1 << 30, 1 << 20}}, {Op::all_to_all, int64_t{1} << 35, 1}, 512).empty());
}
