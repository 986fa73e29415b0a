// SPDX-License-Identifier: Apache-2.0
// A call as a list of steps: what an algorithm makes of it, and what the engine runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/call.h"

namespace mcr {

/// One step. An Issue hands `call` to a communicator; the other kinds are computed on the host: they write `call.out`
/// and read `call.in`, as elements of `call.dtype`.
struct Task {
  enum class Kind : uint8_t {
    Issue,
    Copy,     // out = in
    Combine,  // out = out (red) in
  };

  Kind kind = Kind::Issue;
  Call call;
  uint32_t first_edge = 0;  // its predecessors, in Schedule::after()
  uint32_t edges = 0;
};

/// The tasks of one call on one rank, and the memory that they need beside the caller's. A task waits for its
/// predecessors, which were added before it; tasks without a path between them may run in any order, except that
/// Issues without predecessors are issued in the order in which they were added. Not thread-safe.
class Schedule {
 public:
  using Id = uint32_t;
  using Ids = std::vector<Id>;

  Id issue(const Call& call, const Ids& after = {}) { return add(Task::Kind::Issue, call, after); }
  Id copy(Buffer to, Buffer from, DType dtype, const Ids& after = {}) {
    return add(Task::Kind::Copy, operands(to, from, dtype), after);
  }
  Id combine(Buffer into, Buffer from, DType dtype, RedOp red, const Ids& after) {
    Call call = operands(into, from, dtype);
    call.red = red;
    return add(Task::Kind::Combine, call, after);
  }

  /// Memory that lives as long as the schedule, not initialised.
  std::byte* scratch(int64_t bytes) {
    return memory_.emplace_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes))).get();
  }

  std::span<const Task> tasks() const { return tasks_; }
  std::span<const Id> after(const Task& task) const {
    return std::span<const Id>(edges_).subspan(task.first_edge, task.edges);
  }

 private:
  static Call operands(Buffer out, Buffer in, DType dtype) {
    Call call;
    call.dtype = dtype;
    call.out = out;
    call.in = in;
    return call;
  }
  Id add(Task::Kind kind, const Call& call, const Ids& after) {
    const auto first = static_cast<uint32_t>(edges_.size());
    edges_.insert(edges_.end(), after.begin(), after.end());
    tasks_.push_back({kind, call, first, static_cast<uint32_t>(after.size())});
    return static_cast<Id>(tasks_.size() - 1);
  }

  std::vector<Task> tasks_;
  std::vector<Id> edges_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

/// Computes a task that is no Issue.
void compute(const Task& task);

}  // namespace mcr
