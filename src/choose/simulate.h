// SPDX-License-Identifier: Apache-2.0
// How long schedules take by a cost model: simulates the engine's tasks with numbers instead of libraries.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "algorithms/schedule.h"
#include "choose/cost_model.h"

namespace mcr {

/// A job of a rank: a schedule, whose Waits end at once, or the host's own work. A rank's jobs are in the order in
/// which it submits them.
struct Job {
  /// The meaning of a Task::part: a candidate, and the group on whose communicators it is issued.
  struct Part {
    std::string candidate;
    uint32_t group = 0;  // in World::groups
  };

  const Schedule* schedule = nullptr;  // null: `work`
  int rank = 0;
  std::vector<Part> parts = {};
  std::string codec = {};            // for its Encodes and Decodes
  std::vector<uint32_t> after = {};  // jobs that must end before it starts, all of them earlier in the list
  int64_t priority = 0;              // the lowest goes first
  Cost work = {};                    // for a job without a schedule, at 0 bytes
};

/// The order in which tasks take slots that several wait for. Ties: the longest waiting first, then in the order of
/// jobs and tasks.
enum class QueueOrder : uint8_t { Arrival, Priority, Shortest };

inline constexpr std::array<std::string_view, 3> kQueueOrders = {"arrival", "priority", "shortest"};

/// The ranks and groups of a simulation.
struct World {
  std::vector<std::vector<int>> groups;  // ranks of each; peers are indexes into it
  bool together = false;  // all ranks' jobs are given; false: one rank stands for all and waits for no other
  QueueOrder order = QueueOrder::Arrival;
  bool in_order = true;  // Issues of a rank on one communicator, which late ones have for themselves, start as added;
                         // false: to find an order
};

struct Simulation {
  struct Times {                        // ns
    int64_t ready, issued, start, end;  // `start` of a collective or message: when all of its ranks have issued it
  };
  std::vector<std::vector<Times>> tasks;  // of each job; one entry for a job without a schedule
  std::vector<int64_t> ends;              // of each job
  int64_t end = 0;                        // of the last job
};

/// Throws InvalidArgument for invalid jobs, for jobs without a cost in the model, and for jobs that never end: ranks
/// issue different collectives, a message has no partner, or tasks that hold slots wait for each other.
Simulation simulate(std::span<const Job> jobs, const CostModel& model, const World& world);

}  // namespace mcr
