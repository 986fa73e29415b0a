// SPDX-License-Identifier: Apache-2.0
// A call as a list of tasks: algorithms build it and the engine runs it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/call.h"
#include "base/scratch.h"

namespace mcr {

/// One step of a call. An Issue hands `call` to a communicator; the other kinds run on the host.
struct Task {
  enum class Kind : uint8_t {
    Issue,
    Copy,     // call.out = call.in, or a function that does the copy
    Combine,  // call.out = call.out (call.red) call.in
    Encode,   // a function that encodes call.in into call.out, as bytes
    Decode,   // a function that decodes call.in into call.out
    Wait,     // for an event outside the schedule: a function that is polled
  };

  static constexpr uint32_t kNone = ~uint32_t{0};

  Kind kind = Kind::Issue;
  uint8_t part = 0;   // for an Issue: which of the candidate's backends gets it
  bool late = false;  // it waits for an Issue or a Wait, directly or indirectly
  Call call;          // for Encode and Decode: what they read and write, for the cost model
  uint32_t function = kNone;
  uint32_t first_edge = 0;  // of its predecessors, in Schedule::after()
  uint32_t edges = 0;
};

/// The tasks of one call on one rank, and the memory that they need in addition to the caller's. A task waits for its
/// predecessors, which were added before it. Tasks without a path between them may run in any order, except that Issues
/// of one part are issued in the order in which they were added, late ones among themselves. Everything but data is in
/// one block, so that an ordinary schedule costs one allocation, and with make() usually none. Not thread-safe.
class Schedule {
 public:
  using Id = uint32_t;
  using Ids = std::vector<Id>;

  /// The predecessors of a task; valid until the end of the statement.
  class After {
   public:
    After() = default;
    After(std::initializer_list<Id> ids) : ids_(ids.begin(), ids.size()) {}  // NOLINT: implicit
    After(const Ids& ids) : ids_(ids) {}                                     // NOLINT: implicit
    std::span<const Id> ids() const { return ids_; }

   private:
    std::span<const Id> ids_;
  };

  Schedule();
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;
  ~Schedule();
  /// Makes a schedule, with memory from a pool.
  static std::shared_ptr<Schedule> make();

  Id issue(const Call& call, After after = {}, uint8_t part = 0);
  Id copy(Buffer to, Buffer from, DType dtype, After after = {}) {
    return add(Task::Kind::Copy, operands(to, from, dtype), after);
  }
  /// A copy that `function(schedule)` makes, for example to elements of another type.
  template <class Function>
  Id copy_by(Buffer to, Buffer from, DType dtype, Function function, After after = {}) {
    return add(Task::Kind::Copy, operands(to, from, dtype), after, step(std::move(function)));
  }
  Id combine(Buffer into, Buffer from, DType dtype, RedOp red, After after) {
    Call call = operands(into, from, dtype);
    call.red = red;
    return add(Task::Kind::Combine, call, after);
  }
  /// `function(schedule)` may set the calls of later Issues with set_call(); an exception in it fails the whole call.
  template <class Function>
  Id encode(const Call& operands, Function function, After after = {}) {
    return add(Task::Kind::Encode, operands, after, step(std::move(function)));
  }
  /// Like encode().
  template <class Function>
  Id decode(const Call& operands, Function function, After after = {}) {
    return add(Task::Kind::Decode, operands, after, step(std::move(function)));
  }
  /// `function(expedited)` never waits; it returns true to end the task. `expedited`: a thread waits for the schedule.
  template <class Function>
  Id wait(Function function) {
    return add(Task::Kind::Wait, {}, {},
               step([poll = std::move(function)](Schedule& run) { return poll(run.expedited_); }));
  }

  /// Predecessors that make an Issue late, as it is on other ranks: these, and if none of them is late, a Wait that
  /// ends at once.
  Ids late_after(Ids after);

  /// Sets the call of an Issue that has not been issued, for example to sizes that an earlier task found.
  void set_call(Id issue, const Call& call) { tasks_[issue].call = call; }

  /// The group rank that sent the message of the first Issue, if that is a receive; else -1. The executor sets it.
  int source() const { return source_; }
  void set_source(int rank) { source_ = rank; }

  /// Uninitialised memory that lives as long as the schedule.
  std::byte* scratch(int64_t bytes) { return memory_.emplace_back(bytes).get(); }
  Buffer buffer(int64_t count, DType dtype) { return {scratch(count * size_of(dtype)), count}; }
  /// Keeps a list, as of counts or displacements, as long as the schedule.
  std::span<const int64_t> keep(std::vector<int64_t> values) {
    return make_object<std::vector<int64_t>>(std::move(values));
  }
  /// Makes an object that lives as long as the schedule.
  template <class T, class... Arguments>
  T& make_object(Arguments&&... arguments) {
    T* made = std::pmr::polymorphic_allocator<>(&block_).new_object<T>(std::forward<Arguments>(arguments)...);
    if constexpr (!std::is_trivially_destructible_v<T>) {
      objects_.push_back({made, [](void* object) { std::destroy_at(static_cast<T*>(object)); }});
    }
    return *made;
  }
  /// Keeps an object alive as long as the schedule.
  void own(std::shared_ptr<void> object) { make_object<std::shared_ptr<void>>(std::move(object)); }
  /// For lists that live as long as the schedule.
  std::pmr::memory_resource* block() { return &block_; }

  std::span<const Task> tasks() const { return tasks_; }
  /// Whether the schedule has late Issues.
  bool late() const { return late_; }
  std::span<const Id> after(const Task& task) const {
    return std::span<const Id>(edges_).subspan(task.first_edge, task.edges);
  }

  /// Runs a task that is neither an Issue nor a Wait.
  void compute(Id id);
  /// Polls a Wait; true once it has ended.
  bool poll(Id id, bool expedited = false);

 private:
  static constexpr std::size_t kUsual = 8;  // tasks
  static constexpr std::size_t kBlock = 6144;
  struct Step {
    void* function;
    bool (*run)(void* function, Schedule& schedule);
  };
  struct Object {
    void* object;
    void (*destroy)(void* object);
  };

  static Call operands(Buffer out, Buffer in, DType dtype);
  Id add(Task::Kind kind, const Call& call, After after);
  Id add(Task::Kind kind, const Call& call, After after, Step step);
  bool run_step(const Task& task);

  template <class Function>
  Step step(Function function) {
    return {&make_object<Function>(std::move(function)), [](void* kept, Schedule& schedule) {
              auto& run = *static_cast<Function*>(kept);
              if constexpr (std::is_same_v<std::invoke_result_t<Function&, Schedule&>, bool>) return run(schedule);
              return run(schedule), true;
            }};
  }

  alignas(std::max_align_t) std::array<std::byte, kBlock> first_;  // not initialised
  std::pmr::monotonic_buffer_resource block_{first_.data(), first_.size()};
  std::pmr::vector<Task> tasks_{&block_};
  std::pmr::vector<Id> edges_{&block_};
  std::pmr::vector<Step> steps_{&block_};
  std::pmr::vector<Object> objects_{&block_};
  std::pmr::vector<Scratch> memory_{&block_};
  bool late_ = false;
  int source_ = -1;
  bool expedited_ = false;  // for the Wait that is being polled
};

}  // namespace mcr
