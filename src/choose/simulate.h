// SPDX-License-Identifier: Apache-2.0
// How long schedules take by a cost model: the tasks that the engine runs, walked with numbers in place of libraries.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "algorithms/schedule.h"
#include "choose/cost_model.h"

namespace mcr {

/// What a rank does: a schedule, or the host's own work. The jobs of a rank are in the order in which it submits them.
struct Job {
  /// What Task::part stands for: a candidate, and the group on whose communicators it is issued.
  struct Part {
    std::string candidate;
    uint32_t group = 0;  // in World::groups
  };

  const Schedule* schedule = nullptr;  // null: `work`
  int rank = 0;
  std::vector<Part> parts = {};
  std::string codec = {};            // of its Encodes and Decodes
  int64_t release = 0;               // ns: it begins not before
  std::vector<uint32_t> after = {};  // nor before these jobs have ended, all of them earlier in the list
  std::vector<int64_t> waits = {};   // ns: when its Waits end, in their order; those left over end at once
  int64_t priority = 0;              // the least one first
  Cost work = {};                    // of a job without a schedule, at 0 bytes
};

/// In which order tasks take slots that several wait for. Ties: who waits longer, then the order of jobs and tasks.
enum class QueueOrder : uint8_t { Arrival, Priority, Shortest };

inline constexpr std::array<std::string_view, 3> kQueueOrders = {"arrival", "priority", "shortest"};

/// Where the jobs run.
struct World {
  std::vector<std::vector<int>> groups;  // ranks of each; peers are indices into one
  bool together = false;        // all ranks' jobs are given; false: one rank stands for all, nothing waits for others
  std::vector<int> hosts = {};  // of each rank; empty: all on one
  QueueOrder order = QueueOrder::Arrival;
  bool in_order = true;  // Issues on one communicator, stage and rank start as they were added; false: to find an order
};

struct Simulation {
  struct Times {                        // ns
    int64_t ready, issued, start, end;  // `start` of a collective or message: when all of its ranks have issued it
  };
  struct Use {
    uint32_t resource;
    int owner;     // rank or host; 0 for Scope::All
    int64_t busy;  // ns in which some task had a share of it
  };
  std::vector<std::vector<Times>> tasks;  // of each job; one entry for a job without a schedule
  std::vector<int64_t> ends;              // of each job
  std::vector<Use> uses;                  // of resources that some task can use, in their order
  int64_t end = 0;                        // of the last job
};

/// Throws InvalidArgument for jobs that make no sense, that the model has no cost for, and that never end: ranks issue
/// different collectives, a message has no partner, or tasks that hold slots wait for each other.
Simulation simulate(std::span<const Job> jobs, const CostModel& model, const World& world);

/// What the tasks would take one after the other, and the longest chain of them: bounds of one job's time.
struct Bounds {
  int64_t serial = 0, critical = 0;
};
Bounds bounds(const Job& job, const CostModel& model, const World& world);

}  // namespace mcr
