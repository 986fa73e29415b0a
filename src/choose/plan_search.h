// SPDX-License-Identifier: Apache-2.0
// The search for a plan: Markov chain Monte Carlo over the options and levels of calls (SYNDICATE, NSDI'23,
// section 4.3).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "choose/list_schedule.h"
#include "choose/plan_graph.h"

namespace mcr {

struct PlanSearch {
  struct Settings {
    uint32_t chains = 10;
    uint64_t seed = 0;
    uint32_t most = 0;   // evaluations of each chain; 0: no limit. A chain also ends when half of its evaluations,
                         // and enough of them, have found nothing better
    int64_t budget = 0;  // ns for all chains; 0: no limit, and the result depends on nothing but the arguments
    bool levels = true;  // whether calls may also go first or last
    std::vector<ExecutionPlan> starts = {};  // of the first chains, for example the last plan
    std::function<void()> check = {};        // is called from time to time, and ends the search by an exception
  };

  std::vector<int64_t> chains = {};       // the best cost of each: ns for one iteration
  std::vector<ExecutionPlan> plans = {};  // and its plan
  uint64_t evaluations = 0;
  bool complete = true;  // false: the budget ended it

  /// The best plan of each chain. It begins with one of `starts`, with the fastest options, or at random, and keeps
  /// its best plan. Whole numbers only. Throws InvalidArgument for an invalid graph, plan or setting.
  static PlanSearch run(const PlanGraph& graph, const Settings& settings);
};

/// The fastest option of each node when it has all channels to itself.
std::vector<uint32_t> fastest_options(ListScheduler& scheduler, const PlanGraph& graph);

}  // namespace mcr
