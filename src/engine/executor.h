// SPDX-License-Identifier: Apache-2.0
// Runs schedules: issues and computes tasks when their predecessors are complete.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/schedule.h"
#include "base/error.h"
#include "plugin/lane.h"
#include "runtime/work.h"

namespace mcr {

class Position;

/// Issues the call of a task and adds its requests, even if it throws: the library still uses their memory.
using Start = std::function<void(const Task&, Requests&)>;

/// Late Issues that were started, and the times from the last poll that found their predecessors incomplete to their
/// start: upper bounds of the times from ready to issued.
struct IssueDelays {
  int64_t issues = 0;
  std::chrono::nanoseconds sum{0};
  std::chrono::nanoseconds longest{0};
};

/// One running schedule. Used by one thread at a time: the caller's in begin(), then the thread that drives its
/// Executor, and after issued() the thread that polls its requests.
class Run {
 public:
  /// `later` starts the late Issues, on the thread that drives. Throws InvalidArgument if it is null and the schedule
  /// has late Issues.
  explicit Run(std::shared_ptr<Schedule> schedule, Start later = nullptr);

  /// Starts the tasks that are ready, in order; `first` gets the Issues. Throws what a task throws. Operations started
  /// before that stay with the requests.
  void begin(const Start& first);
  /// Does everything possible now; if `part` is given, starts late Issues of this part alone. False if one of those
  /// that it may start is still to come. An error is kept: nothing is started after it. `delays`, which may be null,
  /// gets those of late Issues that it starts.
  bool advance(IssueDelays* delays = nullptr, std::optional<uint8_t> part = std::nullopt) noexcept;

  /// No Issue is left to start.
  bool issued() const { return issued_.load(std::memory_order_acquire); }
  /// For a run that is issued(): polls the running tasks. True once all tasks are complete; throws the first error.
  bool poll();
  /// For a run that is issued(): no request is running any more; after an error, this may be later than poll() reports.
  bool finished();
  /// Ends a run that cannot go on, for the thread that drives: nothing more is started, and poll() throws this error. A
  /// lock may be held.
  void stop(const Error& error);
  /// A thread waits: expedites the running requests and those still to be started.
  void expedite() { expedited_.store(true, std::memory_order_relaxed); }
  bool expedited() const { return expedited_.load(std::memory_order_relaxed); }
  /// The call has ended: the run goes on, in its order, but other calls do not wait for it. False if that was known.
  bool abandon() { return !abandoned_.exchange(true, std::memory_order_relaxed); }
  /// Another call needs the run, too. False if it was not abandoned.
  bool reclaim() { return abandoned_.exchange(false, std::memory_order_relaxed); }
  bool abandoned() const { return abandoned_.load(std::memory_order_relaxed); }
  /// Sleeps on the requests, one after another, if all were started at the beginning: as Request::block().
  bool block(std::chrono::nanoseconds limit);
  int source() const { return schedule_->source(); }

 private:
  enum class State : uint8_t { Waiting, Running, Done };
  struct Step {
    State state = State::Waiting;
    bool expedited = false, abandoned = false;  // the requests know
    std::size_t next = 0;                       // requests before it are complete
    Requests requests;
  };

  bool ready(const Task& task) const;
  bool start_late(Schedule::Id id, IssueDelays* delays);
  void visit(Schedule::Id id, const Start& start);
  void take(Schedule::Id id, const Start& start);
  void poll_requests(Schedule::Id id);
  void notify(Step& step) const;
  void fail() noexcept;
  void end_issues();
  void pass_over_done();

  const std::shared_ptr<Schedule> schedule_;
  Start later_;  // null when nothing is left to start
  std::vector<Step> steps_;
  Schedule::Id first_ = 0;  // tasks before it are complete
  Schedule::Id first_issue_ = 0;
  std::size_t unissued_ = 0;
  const bool late_;                               // the schedule has late Issues
  std::chrono::steady_clock::time_point polled_;  // the last time that the next late Issue was not ready
  std::optional<Error> failure_;
  std::atomic<bool> issued_{false};
  std::atomic<bool> expedited_{false};
  std::atomic<bool> abandoned_{false};
};

struct ExecutorStatistics {
  IssueDelays delays;
  int64_t queued = 0;       // schedules with late Issues to come, now
  int64_t most_queued = 0;  // at one time
};

/// Drives runs that have late Issues to come.
class Driver {
 public:
  virtual ~Driver() = default;
  /// Does everything possible now; returns at once if another thread is doing so.
  virtual void drive() = 0;
  /// A run has been abandoned or reclaimed. Makes no progress.
  virtual void recount() {}
  /// Names the operation that must be issued before this run, for error messages; empty if there is none, or if the
  /// driver does not know it.
  virtual std::string behind(const Run&) const { return {}; }

 protected:
  /// Repeats a step until it returns true; false if the time runs out first.
  static bool repeat(std::chrono::nanoseconds limit, const std::function<bool()>& step);
};

/// Runs schedules whose late Issues have communicators of their own. There Issues keep the order of submission, and
/// within a schedule the order of its tasks, regardless of which completes first. As all ranks submit in one order,
/// their calls match. Thread-safe. No lock is held while a task runs: it may run codecs and users' functions, and other
/// threads submit meanwhile.
///
/// A library that admits one thread at a time keeps late Issues out while it runs a blocking call, and then the other
/// ranks would never join that call. So such a call first waits until no ordered executor has late Issues to come. This
/// wait ends, because the other ranks have submitted the same schedules, and also wait first; or with the call that one
/// of them has not made: calls that have ended with an error are not waited for.
class Executor final : public Driver, public std::enable_shared_from_this<Executor> {
 public:
  /// `ordered`: other ranks need the Issues that are still to come; false for messages, which only their receiver waits
  /// for. `progress` poll often while Issues are to come.
  explicit Executor(bool ordered, std::vector<Progress*> progress = {});
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor() override;

  /// Begins the run; its late Issues follow. Throws what Run::begin() throws.
  void submit(std::shared_ptr<Run> run, const Start& first);
  /// Polling one run thus also advances the runs before it.
  void drive() override;
  /// A thread waits: expedites all runs, and drives.
  void expedite();
  /// Expedites until no late Issue is to come; false if the time runs out first.
  bool synchronize(std::chrono::nanoseconds limit);
  ExecutorStatistics statistics() const;

  void recount() override;
  std::string behind(const Run& run) const override;
  /// Whether an ordered executor has late Issues to come, of calls that have not ended.
  static bool any() noexcept { return pending_.load(std::memory_order_relaxed) != 0; }
  /// Marks this thread as inside a step that a pass has added to a call (Extras::after), for its lifetime.
  struct InStep {
    InStep() noexcept;
    InStep(const InStep&) = delete;
    InStep& operator=(const InStep&) = delete;
    ~InStep();
  };
  /// Whether a call comes from such a step, and not from a task that the step waits for. Equal on all ranks, unlike the
  /// thread that runs the step: that is the one which sees the call complete, and may drive an executor or not.
  static bool in_step() noexcept;
  /// Whether a call comes from a task of an executor, such as from a pass behind `fuse`, or from a step. The task is in
  /// the same place among the executor's Issues on all ranks. The call may wait neither for that executor nor, in a
  /// library that admits one thread, for calls that other ranks have not made.
  static bool driving() noexcept;
  /// Whether the call comes from a task of this one.
  bool drives_here() const noexcept;
  /// Waits until none has; not for a thread that is driving(). Throws Timeout, and what ends every wait of a call of
  /// the group at this position.
  static void finish(const Position& position, std::chrono::milliseconds limit, Interrupt interrupt);

 private:
  bool awaited() const;
  void set_pending(bool pending);

  static std::atomic<int> pending_;  // not inline: modules with hidden symbols would get a copy
  const bool ordered_;
  const std::vector<Progress*> progress_;
  mutable std::mutex mutex_;               // guards the members below, except that only the driver removes runs
  std::deque<std::shared_ptr<Run>> runs_;  // with late Issues to come
  bool driven_ = false;
  bool listed_ = false;  // in the list of executors with late Issues to come, and the progress threads poll often
  ExecutorStatistics statistics_;
};

/// A request that completes with a run. `driver` may be null if the run has no late Issues.
std::unique_ptr<Request> request_of(std::shared_ptr<Driver> driver, std::shared_ptr<Run> run);

/// A request that completes with another Work, a part of the call: the watchdog ends the call as a whole.
std::unique_ptr<Request> request_of(std::shared_ptr<Work> work);

/// A Start for a communicator.
void issue_on(Communicator& communicator, const Call& call, Requests& requests);

/// Runs a schedule without late Issues in the order of its tasks; `issue` runs a call to its end and returns the group
/// rank that sent a received message, else -1. Returns the result of the last Issue.
int run_inline(Schedule& schedule, const std::function<int(const Task&)>& issue);

}  // namespace mcr
