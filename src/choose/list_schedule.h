// SPDX-License-Identifier: Apache-2.0
// An event-driven list scheduler for plans: optSched of SYNDICATE (NSDI'23, pseudocode 1), for several channels.
//
// simulate() walks the engine's schedules and gives the same times where both apply, which the tests check. The search
// does not use it, for two reasons: it evaluates a plan once per step, and simulate(), which shares bandwidth and
// matches ranks, takes 20 to 40 times as long; and simulate() has no order that all channels share
// (PlanOrder::Sequence).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "choose/plan_graph.h"

namespace mcr {

/// Schedules plans of one graph; keeps its memory between calls. Not thread-safe. The graph must outlive it.
class ListScheduler {
 public:
  struct Times {  // ns
    int64_t ready = 0, start = 0, end = 0;
  };

  explicit ListScheduler(const PlanGraph& graph);

  /// The end of the last motif of `iterations` iterations. Throws InvalidArgument for a plan that does not fit the
  /// graph, and for a sequence that waits for itself, naming the first motif that is never issued.
  int64_t run(const ExecutionPlan& plan, uint32_t iterations);

  /// Of the last run: the motifs of a node's option.
  std::span<const Times> times(uint32_t iteration, uint32_t node) const;

  /// The time of one iteration in the steady state: what `unrolled` iterations take longer than one, for each of them,
  /// but never less than the busiest resource works.
  int64_t cost(const ExecutionPlan& plan, uint32_t unrolled = 2);

  /// The time of an option alone, with all channels free.
  int64_t alone(uint32_t node, uint32_t option);

 private:
  struct Key {
    int64_t priority, ready;
    uint32_t task;
    auto operator<=>(const Key&) const = default;
  };
  struct Event {
    int64_t time;
    uint32_t task;
    auto operator<=>(const Event&) const = default;
  };
  struct Task {
    uint32_t node;  // in all iterations
    uint32_t before;
    uint32_t channel;
    const PlanMotif* motif;
  };

  void check(const ExecutionPlan& plan) const;
  void lay_out(const ExecutionPlan& plan, uint32_t iterations);
  void set_priorities(const ExecutionPlan& plan, uint32_t iterations);
  void set_sequence(const ExecutionPlan& plan, uint32_t iterations);
  void begin_node(uint32_t node);
  void become_ready(uint32_t task);
  void issue_in_sequence();
  void end(uint32_t task);
  void admit();
  int64_t play();
  [[noreturn]] void never_issued() const;
  int64_t busiest(const ExecutionPlan& plan) const;
  std::string name(uint32_t node) const { return "'" + graph_.nodes[node].name + "'"; }
  const PlanOption& option(uint32_t node) const { return graph_.nodes[node % count_].options[chosen_[node % count_]]; }

  const PlanGraph& graph_;
  uint32_t count_;                                         // nodes
  std::vector<std::vector<uint32_t>> next_, next_back_;    // successors in the same and in the next iteration
  std::vector<std::vector<std::vector<int64_t>>> height_;  // of each motif: the longest path from it, in its option
  std::vector<std::vector<std::vector<std::vector<uint32_t>>>> followers_;  // of each motif, in its option

  std::vector<uint32_t> chosen_;
  int64_t now_ = 0;
  uint64_t busy_ = 0;  // resources
  std::vector<Task> tasks_;
  std::vector<Times> times_;
  std::vector<int64_t> priority_;                     // of each task; the lowest goes first
  std::vector<uint32_t> first_;                       // first task of each node
  std::vector<uint32_t> nodes_before_, motifs_left_;  // of each node
  std::vector<int64_t> tail_;                         // of each node
  std::vector<std::vector<Key>> waiting_;             // a heap for each channel
  std::vector<Event> events_;                         // a heap
  std::vector<uint32_t> sequence_;                    // tasks
  std::size_t head_ = 0;                              // the next of them
  std::vector<bool> is_ready_;
  std::vector<std::pair<Key, uint32_t>> tops_;
};

}  // namespace mcr
