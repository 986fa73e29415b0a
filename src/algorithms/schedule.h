// SPDX-License-Identifier: Apache-2.0
// A call as a list of tasks: what an algorithm makes of it, and what the engine runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/call.h"

namespace mcr {

/// One step of a call. An Issue hands `call` to a communicator; the other kinds run on the host.
struct Task {
  enum class Kind : uint8_t {
    Issue,
    Copy,     // call.out = call.in
    Combine,  // call.out = call.out (call.red) call.in
    Encode,   // a function that encodes call.in, bytes that leave in call.out
    Decode,   // a function that decodes call.in to call.out
    Wait,     // for something outside of the schedule: a function that is polled
  };

  Kind kind = Kind::Issue;
  uint8_t part = 0;    // of an Issue: which of the candidate's backends it goes to
  uint32_t stage = 0;  // of an Issue: 0 if it waits for no Issue and no Wait, else how many such come before it, + 1
  bool late = false;   // it waits for an Issue or a Wait, directly or not
  Call call;           // of Encode and Decode: what they read and write, for the cost model
  uint32_t function = 0;
  uint32_t first_edge = 0;  // its predecessors, in Schedule::after()
  uint32_t edges = 0;
};

/// The tasks of one call on one rank, and the memory that they need beside the caller's. A task waits for its
/// predecessors, which were added before it. Tasks without a path between them may run in any order, except that Issues
/// of one part and one stage are issued in the order in which they were added. Not thread-safe.
class Schedule {
 public:
  using Id = uint32_t;
  using Ids = std::vector<Id>;

  Schedule() {
    tasks_.reserve(kUsual);
    edges_.reserve(kUsual);
  }
  Schedule(Schedule&&) = default;
  Schedule& operator=(Schedule&&) = default;
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  Id issue(const Call& call, const Ids& after = {}, uint8_t part = 0);
  Id copy(Buffer to, Buffer from, DType dtype, const Ids& after = {}) {
    return add(Task::Kind::Copy, operands(to, from, dtype), after);
  }
  Id combine(Buffer into, Buffer from, DType dtype, RedOp red, const Ids& after) {
    Call call = operands(into, from, dtype);
    call.red = red;
    return add(Task::Kind::Combine, call, after);
  }
  /// The function may set the calls of later Issues, with set_call(); what it throws fails the whole call.
  Id encode(const Call& operands, std::function<void(Schedule&)> function, const Ids& after = {});
  Id decode(const Call& operands, std::function<void(Schedule&)> function, const Ids& after = {});
  /// The function never waits; true ends the task.
  Id wait(std::function<bool()> function);

  /// The call of an Issue that has not been issued: sizes that a task before it has found.
  void set_call(Id issue, const Call& call) { tasks_[issue].call = call; }

  /// The group rank that sent the message of the first Issue, a receive; else -1. The executor sets it.
  int source() const { return source_; }
  void set_source(int rank) { source_ = rank; }

  /// Memory that lives as long as the schedule, not initialised.
  std::byte* scratch(int64_t bytes) {
    return memory_.emplace_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes))).get();
  }
  /// Keeps an object as long as the schedule.
  void own(std::shared_ptr<void> object) { owned_.push_back(std::move(object)); }

  std::span<const Task> tasks() const { return tasks_; }
  std::span<const Id> after(const Task& task) const {
    return std::span<const Id>(edges_).subspan(task.first_edge, task.edges);
  }

  /// Runs a task that is neither an Issue nor a Wait.
  void compute(Id id);
  /// Polls a Wait; true once it has ended.
  bool poll(Id id) const { return waits_[tasks_[id].function](); }

 private:
  static constexpr std::size_t kUsual = 8;  // tasks
  static Call operands(Buffer out, Buffer in, DType dtype);
  Id add(Task::Kind kind, const Call& call, const Ids& after);

  std::vector<Task> tasks_;
  std::vector<Id> edges_;
  std::vector<std::function<void(Schedule&)>> functions_;
  std::vector<std::function<bool()>> waits_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::shared_ptr<void>> owned_;
  uint32_t stages_ = 0;  // late Issues so far
  int source_ = -1;
};

}  // namespace mcr
