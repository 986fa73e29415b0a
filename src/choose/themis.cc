// SPDX-License-Identifier: Apache-2.0
#include "choose/themis.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <limits>
#include <numeric>
#include <queue>
#include <string>
#include <tuple>

#include "choose/refuse.h"

namespace mcr::themis {

namespace {

__extension__ using Wide = __int128;  // for products of bytes, sizes and times

constexpr int64_t kSecond = 1'000'000'000'000;  // ps
constexpr int kThreshold = 16;  // part of a chunk: with a smaller difference of loads, the order is the baseline's

constexpr int kFraction = 16;  // bits of a time, as in simulate()
constexpr Wide kMostUnits = Wide{1} << 39;
constexpr Wide kMostTime = Wide{1} << 62;  // ps

constexpr Refusal refuse("themis");

int64_t divide_up(Wide value, Wide by) { return static_cast<int64_t>((value + by - 1) / by); }

bool exchanges(const Request& request) { return request.op == Op::all_to_all; }
bool both_ways(const Dimension& one) { return one.links > 1; }

// Steps of the dimension's own algorithm: ring, direct, or halving and doubling; an exchange is direct where it can be.
int64_t step_count(const Dimension& one, bool exchange) {
  if (one.kind == Dimension::Kind::Ring) return exchange && both_ways(one) ? one.size / 2 : one.size - 1;
  if (one.kind == Dimension::Kind::FullyConnected || exchange) return 1;
  return std::bit_width(static_cast<unsigned>(one.size - 1));
}

// A rank's bytes in a dimension, in units of a block: of an exchange on a ring, blocks pass through other ranks.
int64_t blocks(const Dimension& one, bool exchange) {
  const int64_t size = one.size;
  if (!exchange || one.kind != Dimension::Kind::Ring) return size - 1;
  return both_ways(one) ? size * size / 4 : size * (size - 1) / 2;
}

// The times of all steps that chunks can have, in a unit that depends on the network and the request alone.
class Times {
 public:
  Times(std::span<const Dimension> network, const Request& request, int chunks)
      : network_(network), request_(request), chunks_(chunks), unit_(unit_of(network, request)) {
    const std::size_t sets = std::size_t{1} << network.size();
    for (const auto& one : network)
      latencies_.push_back(divide_up(one.latency * step_count(one, exchanges(request)), unit_));
    for (std::size_t before = 0; before < sets; ++before) {
      const Wide parts = Wide{shrunk(before)} * chunks;
      for (std::size_t k = 0; k < network.size(); ++k) work_.push_back(divide_up(bytes_of(k), parts * per_unit(k)));
    }
  }

  std::span<const Dimension> network() const { return network_; }
  std::size_t dimensions() const { return network_.size(); }
  int64_t unit() const { return unit_; }
  int chunks() const { return chunks_; }
  const Request& request() const { return request_; }
  int64_t latency(std::size_t dimension) const { return latencies_[dimension]; }
  /// Of a reduce_scatter of a chunk after those of the dimensions in the set `before`; an all_gather takes as long
  /// before those of `before`.
  int64_t work(std::size_t before, std::size_t dimension) const { return work_[before * network_.size() + dimension]; }
  /// By how much a chunk is smaller after the reduce_scatters of a set of dimensions.
  int64_t shrunk(std::size_t before) const {
    int64_t product = 1;
    for (std::size_t k = 0; k < network_.size(); ++k) {
      if (!exchanges(request_) && (before >> k & 1) != 0) product *= network_[k].size;
    }
    return product;
  }

 private:
  // The bytes that a rank sends in a dimension for the whole data, times the dimension's size, times a second.
  Wide bytes_of(std::size_t k) const {
    return Wide{request_.bytes} * blocks(network_[k], exchanges(request_)) * kSecond;
  }
  Wide per_unit(std::size_t k) const { return Wide{network_[k].size} * network_[k].bandwidth * unit_; }

  static int64_t unit_of(std::span<const Dimension> network, const Request& request) {
    Wide most = 0;
    const bool exchange = exchanges(request);
    for (const auto& one : network) {
      const Wide sent = Wide{request.bytes} * blocks(one, exchange) * kSecond / (Wide{one.size} * one.bandwidth);
      most += 2 * (sent + Wide{one.latency} * step_count(one, exchange) * kMostChunks);
    }
    if (most >= kMostTime)
      refuse("expected bandwidths with which " + std::to_string(request.bytes) + " bytes take less than 50 days");
    int64_t unit = 1;
    while (most / unit >= kMostUnits) unit *= 2;
    return unit;
  }

  std::span<const Dimension> network_;
  const Request& request_;
  int chunks_;
  int64_t unit_;
  std::vector<int64_t> latencies_, work_;
};

bool gathers(const Times& times) { return times.request().op == Op::all_gather; }

Order baseline(const Times& times) {
  Order order(times.dimensions());
  std::iota(order.begin(), order.end(), uint8_t{0});
  if (gathers(times)) std::reverse(order.begin(), order.end());
  return order;
}

// The set of dimensions whose size a chunk is divided by, at its step `index` in an order.
std::size_t divided_by(const Times& times, const Order& order, std::size_t index) {
  std::size_t set = 0;
  const std::size_t from = gathers(times) ? index + 1 : 0, to = gathers(times) ? order.size() : index;
  for (std::size_t i = from; i < to; ++i) set |= std::size_t{1} << order[i];
  return set;
}

// The loads of Algorithm 1, exact, so that equal loads are equal at every size: multiples of a chunk's bytes, divided
// by all sizes and by the dimension's bandwidth.
class Loads {
 public:
  Loads(std::span<const Dimension> network, bool exchange) : network_(network), sums_(network.size(), 0) {
    int64_t ranks = 1;
    for (const auto& one : network) ranks *= one.size;
    for (const auto& one : network) {
      whole_.push_back(blocks(one, exchange) * (ranks / one.size));
    }
  }

  bool less(std::size_t one, std::size_t other) const {
    return Wide{sums_[one]} * network_[other].bandwidth < Wide{sums_[other]} * network_[one].bandwidth;
  }
  /// Whether all are equal but for the time that a sixteenth of a chunk takes in the least loaded dimension.
  bool balanced() const {
    std::size_t least = 0, most = 0;
    for (std::size_t k = 1; k < sums_.size(); ++k) {
      if (less(k, least)) least = k;
      if (less(most, k)) most = k;
    }
    const Wide slow = network_[least].bandwidth, fast = network_[most].bandwidth;
    return (sums_[most] * slow - sums_[least] * fast) * kThreshold < whole_[least] * fast;
  }
  /// Adds a chunk that is `shrunk` times smaller in this dimension.
  void add(std::size_t dimension, int64_t shrunk) { sums_[dimension] += whole_[dimension] / shrunk; }

 private:
  std::span<const Dimension> network_;
  std::vector<int64_t> sums_, whole_;
};

// Algorithm 1 of the paper. Loads begin at 0, as in the authors' code, and not with the dimensions' fixed delays.
std::vector<Order> themis_orders(const Times& times) {
  const Order usual = baseline(times);
  Loads loads(times.network(), exchanges(times.request()));
  std::vector<Order> orders;
  for (int chunk = 0; chunk < times.chunks(); ++chunk) {
    Order order = usual;
    if (!loads.balanced()) {
      std::stable_sort(order.begin(), order.end(), [&](uint8_t one, uint8_t other) {
        return gathers(times) ? loads.less(other, one) : loads.less(one, other);
      });
    }
    for (std::size_t i = 0; i < order.size(); ++i) loads.add(order[i], times.shrunk(divided_by(times, order, i)));
    orders.push_back(std::move(order));
  }
  return orders;
}

// A chunk's steps: its dimensions and their work.
struct Path {
  std::vector<uint8_t> dimensions;
  std::vector<int64_t> work;
};

Path path_of(const Times& times, const Order& order) {
  Path path;
  for (std::size_t i = 0; i < order.size(); ++i) {
    path.dimensions.push_back(order[i]);
    path.work.push_back(times.work(divided_by(times, order, i), order[i]));
  }
  if (times.request().op == Op::all_reduce) {
    for (std::size_t i = order.size(); i-- > 0;) {
      path.dimensions.push_back(order[i]);
      path.work.push_back(path.work[i]);
    }
  }
  return path;
}

struct Draft {
  Policy policy;
  std::vector<Order> orders;
  std::vector<Path> paths;  // of each chunk
};

Draft draft_of(const Times& times, Policy policy) {
  Draft draft{policy, {}, {}};
  draft.orders = policy == Policy::Baseline
                     ? std::vector<Order>(static_cast<std::size_t>(times.chunks()), baseline(times))
                     : themis_orders(times);
  for (const auto& order : draft.orders) draft.paths.push_back(path_of(times, order));
  return draft;
}

// Units of work in each dimension, and a makespan that no order of the steps can undercut.
std::pair<std::vector<int64_t>, int64_t> loads_of(const Times& times, const std::vector<Path>& paths) {
  std::vector<int64_t> work(times.dimensions(), 0), steps(times.dimensions(), 0);
  int64_t least = 0;
  for (const auto& path : paths) {
    int64_t chain = 0;
    for (std::size_t i = 0; i < path.work.size(); ++i) {
      const auto k = path.dimensions[i];
      work[k] += path.work[i];
      ++steps[k];
      chain += path.work[i] + times.latency(k);
    }
    least = std::max(least, chain);
  }
  for (std::size_t k = 0; k < work.size(); ++k) {
    least = std::max({least, work[k] + times.latency(k),
                      divide_up(Wide{work[k]} + Wide{steps[k]} * times.latency(k), times.request().in_flight)});
  }
  return {std::move(work), least};
}

// simulate() for these schedules: one task per step, one resource with slots per dimension. It makes the same roundings
// and breaks ties alike, so that both agree to the last bit (tests/cpp/themis_test.cc), in a hundredth of the time.
class Simulator {
 public:
  Simulator(const Times& times, const Draft& draft) : times_(times), draft_(draft), lines_(times.dimensions()) {
    for (std::size_t chunk = 0; chunk < draft.paths.size(); ++chunk)
      first_.push_back(chunk * draft.paths[0].work.size());
    steps_.resize(draft.paths.size() * draft.paths[0].work.size());
    for (std::size_t chunk = 0; chunk < draft.paths.size(); ++chunk) queue(static_cast<uint16_t>(chunk), 0);
  }

  /// All steps, by chunk and index, with times in units, and the makespan.
  std::pair<std::vector<Step>, int64_t> run() {
    int64_t end = 0;
    for (auto& line : lines_) admit(line);
    while (advance()) {
      for (auto& line : lines_) finish(line);
      for (auto& line : lines_) admit(line);
      end = now_;
    }
    return {std::move(steps_), end >> kFraction};
  }

 private:
  struct Waiting {
    int64_t rank, ready;
    uint16_t chunk;
    uint8_t index;
    bool operator>(const Waiting& other) const {
      return std::tie(rank, ready, chunk, index) > std::tie(other.rank, other.ready, other.chunk, other.index);
    }
  };
  struct Running {
    int64_t time;  // the end of its latency, or the progress of the line at which it ends
    int64_t left;
    uint16_t chunk;
    uint8_t index;
    bool operator>(const Running& other) const { return time > other.time; }
  };
  template <class T>
  using Heap = std::priority_queue<T, std::vector<T>, std::greater<>>;
  // One dimension. All of its steps have one latency, so latencies end in the order of the starts.
  struct Line {
    Heap<Waiting> waiting = {};
    std::deque<Running> latent = {};
    Heap<Running> working = {};
    int64_t progress = 0;  // the work of a step that works all the time
  };

  void queue(uint16_t chunk, uint8_t index) {
    const auto& path = draft_.paths[chunk];
    const auto k = path.dimensions[index];
    steps_[first_[chunk] + index] = {chunk, index, k, now_ >> kFraction, 0, 0};
    lines_[k].waiting.push({draft_.policy == Policy::Scf ? path.work[index] : 0, now_, chunk, index});
  }

  void admit(Line& line) {
    while (!line.waiting.empty() && line.latent.size() + line.working.size() < in_flight_) {
      const auto next = line.waiting.top();
      line.waiting.pop();
      auto& step = steps_[first_[next.chunk] + next.index];
      step.start = now_ >> kFraction;
      const int64_t left = draft_.paths[next.chunk].work[next.index] << kFraction;
      const int64_t latency = times_.latency(step.dimension) << kFraction;
      if (latency == 0) {
        line.working.push({line.progress + left, 0, next.chunk, next.index});
      } else {
        line.latent.push_back({now_ + latency, left, next.chunk, next.index});
      }
    }
  }

  void finish(Line& line) {
    while (!line.latent.empty() && line.latent.front().time <= now_) {
      const auto& one = line.latent.front();
      line.working.push({line.progress + one.left, 0, one.chunk, one.index});
      line.latent.pop_front();
    }
    while (!line.working.empty() && line.working.top().time <= line.progress) {
      const auto [_, left, chunk, index] = line.working.top();
      line.working.pop();
      steps_[first_[chunk] + index].end = now_ >> kFraction;
      if (index + std::size_t{1} < draft_.paths[chunk].work.size()) queue(chunk, static_cast<uint8_t>(index + 1));
    }
  }

  // To the next time at which a step starts to work or ends; false if none does.
  bool advance() {
    constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
    int64_t next = kNever;
    for (const auto& line : lines_) {
      if (!line.latent.empty()) next = std::min(next, line.latent.front().time);
      if (line.working.empty()) continue;
      next = std::min(next, now_ + (line.working.top().time - line.progress) * shares(line));
    }
    if (next == kNever) return false;
    for (auto& line : lines_) {
      if (!line.working.empty()) line.progress += (next - now_) / shares(line);
    }
    now_ = next;
    return true;
  }

  static int64_t shares(const Line& line) { return static_cast<int64_t>(line.working.size()); }

  const Times& times_;
  const Draft& draft_;
  const std::size_t in_flight_ = static_cast<std::size_t>(times_.request().in_flight);
  std::vector<std::size_t> first_;  // of each chunk, in steps_
  std::vector<Step> steps_;
  std::vector<Line> lines_;
  int64_t now_ = 0;
};

Plan finished(const Times& times, Draft draft, std::vector<Step> steps, int64_t end) {
  Plan plan{
      draft.policy,      times.chunks(), std::move(draft.orders), std::move(steps), loads_of(times, draft.paths).first,
      end * times.unit()};
  for (auto& work : plan.work) work *= times.unit();
  for (auto& step : plan.steps) {
    for (auto* time : {&step.ready, &step.start, &step.end}) *time *= times.unit();
  }
  std::sort(plan.steps.begin(), plan.steps.end(), [](const Step& one, const Step& other) {
    return std::tie(one.start, one.dimension, one.chunk, one.index) <
           std::tie(other.start, other.dimension, other.chunk, other.index);
  });
  return plan;
}

}  // namespace

void check(std::span<const Dimension> network, const Request& request, int chunks) {
  refuse.outside("dimensions", static_cast<int64_t>(network.size()), 1, kMostDimensions);
  int64_t ranks = 1;
  for (std::size_t k = 0; k < network.size(); ++k) {
    const std::string where = "dimension " + std::to_string(k + 1) + ": ";
    refuse.outside(where + "size", network[k].size, 2, kMostSize);
    refuse.outside(where + "bandwidth", network[k].bandwidth, 1, kMostBandwidth);
    refuse.outside(where + "latency", network[k].latency, 0, kMostLatency);
    refuse.outside(where + "links", network[k].links, 1, kMostLinks);
    ranks *= network[k].size;
    refuse.outside("ranks", ranks, 2, kMostRanks);
  }
  if (!row(request.op).is(kCuttable) || row(request.op).is(kRooted)) {
    refuse("expected all_reduce, reduce_scatter, all_gather or all_to_all, got " + std::string(row(request.op).name));
  }
  refuse.outside("bytes", request.bytes, 1, kMostBytes);
  refuse.outside("steps in flight", request.in_flight, 1, kMostInFlight);
  refuse.outside("chunks", chunks, 1, kMostChunks);
}

Plan plan(std::span<const Dimension> network, const Request& request, Policy policy, int chunks) {
  return best(network, request, {&policy, 1}, {&chunks, 1});
}

Plan best(std::span<const Dimension> network, const Request& request, std::span<const Policy> policies,
          std::span<const int> chunks) {
  Plan found;
  found.makespan = std::numeric_limits<int64_t>::max();
  for (const int count : chunks) check(network, request, count);
  if (policies.empty() || chunks.empty()) refuse("expected a policy and a number of chunks, got none");
  for (const auto policy : policies) {
    for (const int count : chunks) {
      const Times times(network, request, count);
      auto draft = draft_of(times, policy);
      if (loads_of(times, draft.paths).second >= found.makespan / times.unit()) continue;
      auto [steps, end] = Simulator(times, draft).run();
      if (end * times.unit() < found.makespan) found = finished(times, std::move(draft), std::move(steps), end);
    }
  }
  return found;
}

}  // namespace mcr::themis
