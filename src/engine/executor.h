// SPDX-License-Identifier: Apache-2.0
// Runs schedules: tasks are issued and computed when what they wait for is complete.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "algorithms/schedule.h"
#include "base/error.h"
#include "engine/continuation.h"
#include "plugin/lane.h"

namespace mcr {

using Requests = std::vector<std::unique_ptr<Request>>;
/// Issues the call of a task and adds its requests, also where it throws: the library still uses their memory.
using Start = std::function<void(const Task&, Requests&)>;

/// One schedule on its way. Used by one thread at a time: the caller's in begin(), then the one that drives its
/// Executor, and from issued() on the one that polls its requests.
class Run {
 public:
  /// `later` starts the late Issues, on whatever thread drives. Throws InvalidArgument if it is null and there are
  /// some.
  explicit Run(std::shared_ptr<Schedule> schedule, Start later = nullptr);

  /// Starts what is ready, in the order of the tasks; `first` gets the Issues. Throws what a task throws. What was
  /// started before stays with the requests.
  void begin(const Start& first);
  /// Does all that can be done now, except Issues on a stage that is `blocked` (a bit each, modulo the executor's
  /// `stages`). Returns the bits with those on which a late Issue of this run is still to come. An error is kept:
  /// nothing is started behind it.
  uint64_t advance(uint64_t blocked, uint32_t stages) noexcept;

  /// No Issue is left to be started.
  bool issued() const { return issued_.load(std::memory_order_acquire); }
  /// Of a run that is issued(): polls what runs. True once all tasks are complete; throws the first error.
  bool poll();
  /// No request is running any more; after an error this comes later than poll()'s answer.
  bool settled();
  /// A thread waits: the running requests hurry, and those that are still to be started.
  void hurry() { hurried_.store(true, std::memory_order_relaxed); }
  /// Sleeps on the last request, where all of them were there from the beginning.
  bool block(std::chrono::nanoseconds limit);
  int source() const { return schedule_->source(); }

 private:
  enum class State : uint8_t { Waiting, Running, Done };
  struct Step {
    State state = State::Waiting;
    bool hurried = false;
    std::size_t next = 0;  // requests before it are complete
    Requests requests;
  };

  bool ready(const Task& task) const;
  void visit(Schedule::Id id, const Start& start);
  void take(Schedule::Id id, const Start& start);
  void poll_requests(Schedule::Id id);
  void hurry(Step& step) const;
  void fail() noexcept;
  void pass_over_done();

  const std::shared_ptr<Schedule> schedule_;
  const Start later_;
  std::vector<Step> steps_;
  Schedule::Id first_ = 0;  // the tasks before it are complete
  Schedule::Id first_issue_ = 0;
  std::size_t unissued_ = 0;
  const bool late_;  // it has late Issues
  std::optional<Error> failure_;
  std::atomic<bool> issued_{false};
  std::atomic<bool> hurried_{false};
};

/// Schedules whose later Issues share communicators of their own, its stages: the k-th late Issue of a schedule goes to
/// stage k modulo their number. On each stage the order of submission decides, and within a schedule that of its tasks,
/// whatever completes first. As all ranks submit in the same order, their calls meet. Thread-safe. No lock is held
/// while a task runs: it may run codecs and users' functions, and other threads submit meanwhile.
class Executor : public Continuation {
 public:
  /// `ordered`: other ranks need what it has still to issue; false for messages, which only their receiver waits for.
  /// `progress` looks often while there is something to issue; null: nobody does.
  explicit Executor(bool ordered, Progress* progress = nullptr, uint32_t stages = 1);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor() override;

  /// Begins the run; its late Issues follow. Throws what Run::begin() throws.
  void submit(std::shared_ptr<Run> run, const Start& first);
  /// Does what can be done now; returns at once if another thread does so. Polling one run thereby moves those before
  /// it.
  void drive();
  void hurry() override { drive(); }

 private:
  void tell(bool pending);

  const bool ordered_;
  Progress* const progress_;
  const uint32_t stages_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<Run>> runs_;  // with Issues to come; guarded by mutex_, the driver alone takes from it
  bool driven_ = false;                    // guarded by mutex_
  bool hastened_ = false;                  // guarded by mutex_
};

/// The requests of a run for its Work: the first one ends with the outcome, the second one when nothing is running.
/// `executor` may be null if the run has no late Issues.
Requests requests_of(std::shared_ptr<Executor> executor, std::shared_ptr<Run> run);

/// The request of a call that another Work does.
std::unique_ptr<Request> request_of(std::shared_ptr<Work> work);

/// A Start for a communicator.
void issue_on(Communicator& communicator, const Call& call, Requests& requests);

/// Runs a schedule without late Issues in the order of its tasks; `issue` runs a call to its end and returns the group
/// rank that a receive came from, else -1. Returns that of the last Issue.
int run_inline(Schedule& schedule, const std::function<int(const Task&)>& issue);

}  // namespace mcr
