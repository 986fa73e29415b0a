// SPDX-License-Identifier: Apache-2.0
#include "choose/list_schedule.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <utility>

#include "choose/refuse.h"

namespace mcr {

namespace {

constexpr int64_t kLevel = int64_t{1} << 61;  // above all remaining paths
constexpr int64_t kLongest = int64_t{1} << 60;

constexpr Refusal refuse("plan");

template <class Entry>
void push(std::vector<Entry>& heap, Entry entry) {
  heap.push_back(std::move(entry));
  std::push_heap(heap.begin(), heap.end(), std::greater<>{});
}

template <class Entry>
Entry pop(std::vector<Entry>& heap) {
  std::pop_heap(heap.begin(), heap.end(), std::greater<>{});
  const Entry entry = heap.back();
  heap.pop_back();
  return entry;
}

}  // namespace

ListScheduler::ListScheduler(const PlanGraph& graph)
    : graph_(graph), count_(static_cast<uint32_t>(graph.nodes.size())), next_(count_), next_back_(count_) {
  graph.check();
  int64_t total = 0;
  for (uint32_t node = 0; node < count_; ++node) {
    for (const auto& [before, back] : graph.nodes[node].after) (back == 0 ? next_ : next_back_)[before].push_back(node);
    auto& heights = height_.emplace_back();
    auto& followers = followers_.emplace_back();
    for (const auto& option : graph.nodes[node].options) {
      auto& height = heights.emplace_back(option.size(), 0);
      auto& following = followers.emplace_back(option.size());
      for (std::size_t motif = option.size(); motif-- > 0;) {
        height[motif] += option[motif].time;
        total += option[motif].time;
        for (const auto before : option[motif].after) {
          height[before] = std::max(height[before], height[motif]);
          following[before].push_back(static_cast<uint32_t>(motif));
        }
      }
    }
  }
  if (total > kLongest >> 4) refuse("expected times that add up to less than 2^56 ns");
}

void ListScheduler::check(const ExecutionPlan& plan) const {
  if (plan.options.size() != count_ || (!plan.levels.empty() && plan.levels.size() != count_)) {
    refuse("expected an option of each of " + std::to_string(count_) + " nodes, got " +
           std::to_string(plan.options.size()));
  }
  for (const int level : plan.levels) {
    if (level < -1 || level > 1) refuse("expected levels of -1, 0 or 1, got " + std::to_string(level));
  }
  for (uint32_t node = 0; node < count_; ++node) {
    if (plan.options[node] < graph_.nodes[node].options.size()) continue;
    refuse(name(node) + ": expected one of " + std::to_string(graph_.nodes[node].options.size()) +
           " options, got number " + std::to_string(plan.options[node]));
  }
}

// ---- the tasks of all iterations

void ListScheduler::lay_out(const ExecutionPlan& plan, uint32_t iterations) {
  chosen_ = plan.options;
  const std::size_t nodes = std::size_t{count_} * iterations;
  tasks_.clear();
  first_.clear();
  nodes_before_.assign(nodes, 0);
  motifs_left_.assign(nodes, 0);
  for (uint32_t node = 0; node < nodes; ++node) {
    first_.push_back(static_cast<uint32_t>(tasks_.size()));
    for (const auto& motif : option(node)) {
      tasks_.push_back({node, static_cast<uint32_t>(motif.after.size()) + 1, motif.channel, &motif});
    }
    motifs_left_[node] = static_cast<uint32_t>(option(node).size());
    for (const auto& [_, back] : graph_.nodes[node % count_].after) nodes_before_[node] += back == 0 || node >= count_;
  }
  times_.assign(tasks_.size(), {});
  priority_.assign(tasks_.size(), 0);
  waiting_.resize(graph_.channels.size());
  for (auto& heap : waiting_) heap.clear();
  events_.clear();
  sequence_.clear();
  head_ = 0;
  now_ = 0;
  busy_ = 0;
}

void ListScheduler::set_priorities(const ExecutionPlan& plan, uint32_t iterations) {
  const uint32_t nodes = count_ * iterations;
  tail_.assign(nodes, 0);  // the longest path from the start of a node
  for (uint32_t node = nodes; node-- > 0;) {
    const uint32_t one = node % count_;
    const auto& height = height_[one][chosen_[one]];
    int64_t down = 0;
    for (const auto next : next_[one]) down = std::max(down, tail_[node - one + next]);
    if (node + count_ < nodes) {
      for (const auto next : next_back_[one]) down = std::max(down, tail_[node - one + count_ + next]);
    }
    const int64_t level = plan.levels.empty() ? 0 : plan.levels[one] * kLevel;
    for (std::size_t motif = 0; motif < height.size(); ++motif) {
      priority_[first_[node] + motif] = -(height[motif] + down) - level;
      tail_[node] = std::max(tail_[node], height[motif] + down);
    }
  }
}

void ListScheduler::set_sequence(const ExecutionPlan& plan, uint32_t iterations) {
  constexpr uint32_t kNone = ~uint32_t{0};
  uint32_t most = 0;
  for (const auto& place : plan.sequence) most = std::max(most, place.ahead);
  if (most > SequencePlace::kMostAhead) refuse("expected places at most 2 iterations ahead");
  std::vector<uint32_t> places(tasks_.size(), kNone);
  for (uint32_t round = 0; round < iterations + most; ++round) {  // the first round is that of iteration -most
    for (const auto& place : plan.sequence) {
      if (place.node >= count_ || !graph_.nodes[place.node].call) refuse("expected places of calls only");
      if (place.motif >= option(place.node).size()) {
        refuse(name(place.node) + ": expected one of " + std::to_string(option(place.node).size()) +
               " motifs, got number " + std::to_string(place.motif));
      }
      const int64_t iteration = int64_t{round} - most + place.ahead;
      if (iteration < 0 || iteration >= iterations) continue;
      const auto task = static_cast<uint32_t>(first_[iteration * count_ + place.node] + place.motif);
      if (places[task] != kNone) {
        refuse(name(place.node) + ": expected each motif once, got number " + std::to_string(place.motif) + " twice");
      }
      places[task] = static_cast<uint32_t>(sequence_.size());
      priority_[task] = places[task];
      sequence_.push_back(task);
    }
  }
  for (uint32_t task = 0; task < tasks_.size(); ++task) {
    const uint32_t node = tasks_[task].node % count_;
    if (graph_.nodes[node].call && places[task] == kNone) {
      refuse(name(node) + ": expected a place of each motif in the order, got too few");
    }
  }
  is_ready_.assign(tasks_.size(), false);
}

// ---- events

void ListScheduler::begin_node(uint32_t node) {
  for (uint32_t task = first_[node]; task < first_[node] + motifs_left_[node]; ++task) {
    if (--tasks_[task].before == 0) become_ready(task);
  }
}

void ListScheduler::become_ready(uint32_t task) {
  times_[task].ready = now_;
  if (!sequence_.empty() && graph_.nodes[tasks_[task].node % count_].call) {
    is_ready_[task] = true;
    return;
  }
  push(waiting_[tasks_[task].channel], {priority_[task], now_, task});
}

void ListScheduler::issue_in_sequence() {
  for (; head_ < sequence_.size() && is_ready_[sequence_[head_]]; ++head_) {
    const auto task = sequence_[head_];
    push(waiting_[tasks_[task].channel], {priority_[task], now_, task});
  }
}

void ListScheduler::end(uint32_t index) {
  const auto& task = tasks_[index];
  busy_ &= ~graph_.channels[task.channel];
  const uint32_t node = task.node, one = node % count_;
  const uint32_t motif = index - first_[node];
  for (const auto next : followers_[one][chosen_[one]][motif]) {
    if (--tasks_[first_[node] + next].before == 0) become_ready(first_[node] + next);
  }
  if (--motifs_left_[node] != 0) return;
  for (const auto next : next_[one]) {
    if (--nodes_before_[node - one + next] == 0) begin_node(node - one + next);
  }
  if (node + count_ >= first_.size()) return;
  for (const auto next : next_back_[one]) {
    if (--nodes_before_[node - one + count_ + next] == 0) begin_node(node - one + count_ + next);
  }
}

// Starts motifs in the order of the queues. None overtakes one that waits for the same resource.
void ListScheduler::admit() {
  issue_in_sequence();
  tops_.clear();
  for (uint32_t channel = 0; channel < waiting_.size(); ++channel) {
    if (!waiting_[channel].empty()) tops_.emplace_back(waiting_[channel].front(), channel);
  }
  std::sort(tops_.begin(), tops_.end());
  uint64_t taken = busy_;
  for (const auto& [key, channel] : tops_) {
    const uint64_t mask = graph_.channels[channel];
    if ((taken & mask) == 0) {
      pop(waiting_[channel]);
      busy_ |= mask;
      times_[key.task].start = now_;
      times_[key.task].end = now_ + tasks_[key.task].motif->time;
      push(events_, {times_[key.task].end, key.task});
    }
    taken |= mask;
  }
}

int64_t ListScheduler::play() {
  std::size_t done = 0;
  for (uint32_t node = 0; node < first_.size(); ++node) {
    if (nodes_before_[node] == 0) begin_node(node);
  }
  while (true) {
    admit();
    if (events_.empty()) break;
    now_ = events_.front().time;
    while (!events_.empty() && events_.front().time <= now_) {
      end(pop(events_).task);
      ++done;
    }
  }
  if (done != tasks_.size()) never_issued();
  return now_;
}

void ListScheduler::never_issued() const {
  const auto& head = tasks_[sequence_[head_]];
  const uint32_t motif = sequence_[head_] - first_[head.node];
  refuse("expected an order that the program allows: motif " + std::to_string(motif) + " of " +
         name(head.node % count_) + " waits for calls that come after it in the order");
}

int64_t ListScheduler::run(const ExecutionPlan& plan, uint32_t iterations) {
  check(plan);
  lay_out(plan, iterations);
  if (plan.order == PlanOrder::Critical) set_priorities(plan, iterations);
  if (plan.order == PlanOrder::Sequence) set_sequence(plan, iterations);
  return play();
}

std::span<const ListScheduler::Times> ListScheduler::times(uint32_t iteration, uint32_t node) const {
  return std::span<const Times>(times_).subspan(first_[std::size_t{iteration} * count_ + node], option(node).size());
}

// ---- costs

int64_t ListScheduler::busiest(const ExecutionPlan& plan) const {
  std::array<int64_t, 64> work{};
  for (uint32_t node = 0; node < count_; ++node) {
    for (const auto& motif : graph_.nodes[node].options[plan.options[node]]) {
      for (uint64_t left = graph_.channels[motif.channel]; left != 0; left &= left - 1) {
        work[static_cast<std::size_t>(std::countr_zero(left))] += motif.time;
      }
    }
  }
  return *std::max_element(work.begin(), work.end());
}

int64_t ListScheduler::cost(const ExecutionPlan& plan, uint32_t unrolled) {
  if (unrolled < 2) refuse("expected at least two unrolled iterations, got " + std::to_string(unrolled));
  const int64_t one = run(plan, 1);
  const int64_t steps = unrolled - 1;
  return std::max((run(plan, unrolled) - one + steps - 1) / steps, busiest(plan));
}

int64_t ListScheduler::alone(uint32_t node, uint32_t choice) {
  int64_t end = 0;
  const auto& motifs = graph_.nodes[node].options[choice];
  std::vector<int64_t> ends(motifs.size(), -1);
  std::array<int64_t, 64> free{};
  for (std::size_t index = 0; index < motifs.size(); ++index) {
    int64_t start = 0;
    for (const auto before : motifs[index].after) start = std::max(start, ends[before]);
    for (uint64_t left = graph_.channels[motifs[index].channel]; left != 0; left &= left - 1) {
      start = std::max(start, free[static_cast<std::size_t>(std::countr_zero(left))]);
    }
    ends[index] = start + motifs[index].time;
    for (uint64_t left = graph_.channels[motifs[index].channel]; left != 0; left &= left - 1) {
      free[static_cast<std::size_t>(std::countr_zero(left))] = ends[index];
    }
    end = std::max(end, ends[index]);
  }
  return end;
}

}  // namespace mcr
