// SPDX-License-Identifier: Apache-2.0
// A training iteration as a graph of computation and calls: what a plan decides on.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mcr {

/// A part of a call: it keeps all resources of its channel for its time.
struct PlanMotif {
  int64_t time = 0;                  // ns
  uint32_t channel = 0;              // in PlanGraph::channels
  std::vector<uint32_t> after = {};  // motifs of the same option that end before it, all of them earlier in the list
};

/// One way to do a call.
using PlanOption = std::vector<PlanMotif>;

/// A call, or a computation: a node with one option.
struct PlanNode {
  struct After {
    uint32_t node;
    uint32_t back = 0;  // 1: of the previous iteration. 0: an earlier node of the list
  };
  std::vector<After> after = {};
  std::vector<PlanOption> options = {};  // at least one, none of them empty
  bool call = false;                     // it has places in a plan's order
  std::string name = {};                 // for texts
};

struct PlanGraph {
  /// Channels that share a resource never work at the same time.
  std::vector<uint64_t> channels;  // a bit for each of at most 64 resources
  std::vector<PlanNode> nodes;     // one iteration, in program order

  /// Throws InvalidArgument for a graph that is not as described here, or too large.
  void check() const;
};

/// Which motif of those that wait for a resource goes first. Ties: the longest waiting, then by iteration and node.
enum class PlanOrder : uint8_t {
  Ready,     // the first that is ready
  Critical,  // the one with the longest remaining path
  Sequence,  // strictly a plan's order: a motif is issued after all motifs before it
};

inline constexpr std::array<std::string_view, 3> kPlanOrders = {"ready", "critical", "sequence"};

/// A place in a plan's order of one iteration. In the p-th round it stands for a motif of iteration p + ahead.
struct SequencePlace {
  uint32_t node = 0, motif = 0, ahead = 0;
  static constexpr uint32_t kMostAhead = 2;
};

/// An option of each node, and how motifs are ordered.
struct ExecutionPlan {
  std::vector<uint32_t> options = {};
  std::vector<int8_t> levels = {};  // of each node: -1 last, 0, 1 first; empty: all 0. For PlanOrder::Critical
  PlanOrder order = PlanOrder::Critical;
  std::vector<SequencePlace> sequence = {};  // for PlanOrder::Sequence: each motif of the calls once
};

}  // namespace mcr
