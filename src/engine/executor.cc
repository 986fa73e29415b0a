// SPDX-License-Identifier: Apache-2.0
#include "engine/executor.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "base/immortal.h"
#include "engine/wait.h"
#include "runtime/progress.h"

namespace mcr {

namespace {

using Clock = std::chrono::steady_clock;

class RunRequest final : public Lingering {
 public:
  RunRequest(std::shared_ptr<Driver> driver, std::shared_ptr<Run> run)
      : driver_(std::move(driver)), run_(std::move(run)) {}
  bool block(std::chrono::nanoseconds limit) override { return run_->block(limit); }
  void expedite() override {
    run_->expedite();
    if (driver_ != nullptr) driver_->drive();
  }
  std::string behind() const override {
    return driver_ == nullptr || run_->issued() ? std::string() : driver_->behind(*run_);
  }
  int source() const override { return run_->source(); }
  void abandon() override {
    if (run_->abandon() && driver_ != nullptr) driver_->recount();
  }

 private:
  bool step() override { return drive_until_issued() && run_->poll(); }
  bool rest() const override { return drive_until_issued() && run_->finished(); }
  // False: not now. Issues what is due of other calls, too.
  bool drive_until_issued() const {
    if (!run_->issued()) driver_->drive();
    return run_->issued();
  }

  std::shared_ptr<Driver> driver_;
  std::shared_ptr<Run> run_;
};

class WorkRequest final : public Lingering {
 public:
  explicit WorkRequest(std::shared_ptr<Work> work) : work_(std::move(work)) {}
  bool block(std::chrono::nanoseconds limit) override {
    work_->wait_for(limit);
    return true;
  }
  void expedite() override { work_->wait_for(std::chrono::nanoseconds(0)); }
  std::string behind() const override { return work_->behind(); }
  int source() const override { return work_->source(); }
  void abandon() override { work_->abandon(); }

 private:
  bool step() override {
    if (!work_->poll()) return false;
    // Otherwise the call's memory would stay until the next sweep, and the next call would take other, cold memory.
    if (work_->finished() && work_->progress() != nullptr) work_->progress()->forget(*work_);
    work_->rethrow();
    return true;
  }
  bool rest() const override { return work_->poll() && work_->finished(); }

  std::shared_ptr<Work> work_;
};

}  // namespace

// ---- one schedule

Run::Run(std::shared_ptr<Schedule> schedule, Start later)
    : schedule_(std::move(schedule)),
      later_(std::move(later)),
      steps_(schedule_->tasks().size()),
      late_(schedule_->late()) {
  if (late_ && later_ == nullptr) {
    throw Error(ErrorCode::InvalidArgument,
                "schedule: expected Issues that wait for no other, as there is no stage, got a late one");
  }
  const auto issues = [](const Task& task) { return task.kind == Task::Kind::Issue; };
  const auto tasks = schedule_->tasks();
  unissued_ = static_cast<std::size_t>(std::ranges::count_if(tasks, issues));
  first_issue_ = static_cast<Schedule::Id>(std::ranges::find_if(tasks, issues) - tasks.begin());
}

bool Run::ready(const Task& task) const {
  return std::ranges::all_of(schedule_->after(task), [&](Schedule::Id id) { return steps_[id].state == State::Done; });
}

void Run::begin(const Start& first) {
  try {
    if (late_) polled_ = Clock::now();
    for (Schedule::Id id = 0; id < steps_.size(); ++id) {
      const Task& task = schedule_->tasks()[id];
      if (!task.late && ready(task)) take(id, first);
    }
    pass_over_done();
    if (unissued_ == 0) end_issues();
  } catch (...) {
    fail();
    throw;
  }
}

bool Run::advance(IssueDelays* delays, std::optional<uint8_t> part) noexcept {
  bool blocked = false;
  try {
    for (Schedule::Id id = first_; id < steps_.size() && !failure_; ++id) {
      const Task& task = schedule_->tasks()[id];
      if (steps_[id].state != State::Waiting || task.kind != Task::Kind::Issue || !task.late) {
        visit(id, later_);
      } else if (!blocked && (!part || task.part == *part)) {
        blocked = !start_late(id, delays);
      }
    }
    pass_over_done();
    if (unissued_ == 0) end_issues();
  } catch (...) {
    fail();
  }
  return !blocked;
}

// False: not now.
bool Run::start_late(Schedule::Id id, IssueDelays* delays) {
  if (!ready(schedule_->tasks()[id])) {
    polled_ = Clock::now();
    return false;
  }
  const std::chrono::nanoseconds delay = Clock::now() - polled_;
  take(id, later_);
  if (delays != nullptr) {
    ++delays->issues;
    delays->sum += delay;
    delays->longest = std::max(delays->longest, delay);
  }
  return true;
}

void Run::visit(Schedule::Id id, const Start& start) {
  switch (steps_[id].state) {
    case State::Waiting:
      if (ready(schedule_->tasks()[id])) take(id, start);
      return;
    case State::Running:
      return poll_requests(id);
    case State::Done:
      return;
  }
}

void Run::take(Schedule::Id id, const Start& start) {
  const Task& task = schedule_->tasks()[id];
  auto& step = steps_[id];
  if (task.kind == Task::Kind::Issue) {
    step.state = State::Running;
    --unissued_;
    start(task, step.requests);
    if (step.requests.empty()) step.state = State::Done;
    notify(step);
  } else if (task.kind == Task::Kind::Wait) {
    if (schedule_->poll(id, expedited())) step.state = State::Done;
  } else {
    schedule_->compute(id);
    step.state = State::Done;
  }
}

// Releases the communicators of late Issues: a request that the program keeps does not keep them.
void Run::end_issues() {
  later_ = nullptr;
  issued_.store(true, std::memory_order_release);
}

// Only once per step: a request passes it on to the operations that it starts later, and a poll must stay cheap.
void Run::notify(Step& step) const {
  if (!step.expedited && expedited()) {
    step.expedited = true;
    for (const auto& request : step.requests) request->expedite();
  }
  if (!step.abandoned && abandoned()) {
    step.abandoned = true;
    for (const auto& request : step.requests) request->abandon();
  }
}

void Run::poll_requests(Schedule::Id id) {
  auto& step = steps_[id];
  notify(step);
  while (step.next < step.requests.size()) {
    try {
      if (!step.requests[step.next]->poll()) return;
    } catch (...) {
      if (!step.requests[step.next]->lingers()) ++step.next;
      throw;
    }
    ++step.next;
  }
  step.state = State::Done;
  if (id == first_issue_ && !step.requests.empty()) schedule_->set_source(step.requests.front()->source());
}

// Waiting tasks are never started. Call in a catch block.
void Run::fail() noexcept { stop(current_error()); }

void Run::pass_over_done() {
  while (first_ < steps_.size() && steps_[first_].state == State::Done) ++first_;
}

bool Run::poll() {
  if (!failure_) advance();
  if (failure_) throw Error(*failure_);
  return first_ == steps_.size();
}

bool Run::finished() {
  later_ = nullptr;  // as after stop()
  bool running = false;
  for (Schedule::Id id = first_; id < steps_.size(); ++id) {
    while (steps_[id].state == State::Running) {
      try {
        poll_requests(id);
        break;
      } catch (...) {
        fail();
      }
    }
    running = running || steps_[id].state == State::Running;
  }
  return !running;
}

void Run::stop(const Error& error) {
  if (!failure_) failure_ = error;
  issued_.store(true, std::memory_order_release);
}

// A library that waits would keep another one, which only polls move on, from its part.
bool Run::block(std::chrono::nanoseconds limit) {
  const auto of_another = [](const Task& task) { return task.part != 0; };
  if (late_ || !issued() || std::ranges::any_of(schedule_->tasks(), of_another)) return false;
  const auto deadline = Clock::now() + limit;
  for (const auto& step : steps_) {
    if (!step.requests.empty() && !block_on(step.requests, deadline - Clock::now())) return false;
  }
  return true;
}

// ---- all schedules

namespace {

// The ordered executors with late Issues to come.
struct List {
  std::mutex mutex;
  std::vector<std::shared_ptr<Executor>> all;  // guarded by mutex
};

// Never destroyed: threads may still use it during process exit.
List& list() {
  static auto& made = immortal<List>();
  return made;
}

thread_local int steps = 0;  // that this thread is in, one inside another, since it began to drive an executor

// The executors that this thread drives, the innermost first: a task may run a user's function that makes calls.
struct Driving {
  explicit Driving(const Executor& its)
      : executor(its), outer(std::exchange(innermost, this)), outer_steps(std::exchange(steps, 0)) {}
  Driving(const Driving&) = delete;
  Driving& operator=(const Driving&) = delete;
  ~Driving() {
    innermost = outer;
    steps = outer_steps;
  }
  static bool here(const Executor& one) {
    for (const auto* each = innermost; each != nullptr; each = each->outer) {
      if (&each->executor == &one) return true;
    }
    return false;
  }

  const Executor& executor;
  Driving* const outer;
  const int outer_steps;
  static thread_local Driving* innermost;
};
thread_local Driving* Driving::innermost = nullptr;

// A wait checks the clock and Ctrl-C after this many rounds.
constexpr int kRounds = 100;

}  // namespace

std::atomic<int> Executor::pending_{0};

Executor::Executor(bool ordered, std::vector<Progress*> progress) : ordered_(ordered), progress_(std::move(progress)) {}

Executor::~Executor() {
  if (!listed_) return;
  for (auto* progress : progress_) progress->poll_seldom();
}

// Call with the mutex held.
void Executor::set_pending(bool pending) {
  if (listed_ == pending) return;
  listed_ = pending;
  for (auto* progress : progress_) pending ? progress->poll_often() : progress->poll_seldom();
  if (!ordered_) return;
  const std::lock_guard lock(list().mutex);
  if (pending) {
    list().all.push_back(shared_from_this());
  } else {
    std::erase_if(list().all, [this](const auto& one) { return one.get() == this; });
  }
  pending_.store(static_cast<int>(list().all.size()), std::memory_order_relaxed);
}

void Executor::submit(std::shared_ptr<Run> run, const Start& first) {
  run->begin(first);
  if (run->issued()) return;
  const std::lock_guard lock(mutex_);
  runs_.push_back(std::move(run));
  statistics_.most_queued = std::max(statistics_.most_queued, static_cast<int64_t>(runs_.size()));
  set_pending(awaited());
}

void Executor::drive() {
  std::unique_lock lock(mutex_);
  if (std::exchange(driven_, true)) return;
  const Driving driving(*this);
  IssueDelays delays = statistics_.delays;
  while (!runs_.empty()) {
    auto run = runs_.front();  // it stays there: others only append
    lock.unlock();
    run->advance(&delays);
    lock.lock();
    if (!run->issued()) break;  // later runs cannot issue anything
    runs_.pop_front();
    lock.unlock();
    run.reset();  // perhaps the last reference, which may end objects of users
    lock.lock();
  }
  statistics_.delays = delays;
  set_pending(awaited());
  driven_ = false;
}

// Call with the mutex held.
bool Executor::awaited() const {
  return std::ranges::any_of(runs_, [](const auto& run) { return !run->abandoned(); });
}

void Executor::recount() {
  const std::lock_guard lock(mutex_);
  set_pending(awaited());
}

std::string Executor::behind(const Run& run) const {
  const std::lock_guard lock(mutex_);
  return runs_.empty() || runs_.front().get() == &run ? std::string() : "an earlier call of its group";
}

void Executor::expedite() {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& run : runs_) run->expedite();
  }
  drive();
}

Executor::InStep::InStep() noexcept { ++steps; }

Executor::InStep::~InStep() { --steps; }

bool Executor::in_step() noexcept { return steps != 0; }

bool Executor::driving() noexcept { return Driving::innermost != nullptr || in_step(); }

bool Executor::drives_here() const noexcept { return Driving::here(*this); }

ExecutorStatistics Executor::statistics() const {
  const std::lock_guard lock(mutex_);
  auto now = statistics_;
  now.queued = static_cast<int64_t>(runs_.size());
  return now;
}

bool Driver::repeat(std::chrono::nanoseconds limit, const std::function<bool()>& step) {
  const auto deadline = Clock::now() + limit;
  while (!step()) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

bool Executor::synchronize(std::chrono::nanoseconds limit) {
  return repeat(limit, [this] {
    expedite();
    return statistics().queued == 0;
  });
}

void Executor::finish(const Position& position, std::chrono::milliseconds limit, Interrupt interrupt) {
  const auto deadline = Clock::now() + limit;
  for (int round = 1; any(); ++round) {
    std::vector<std::shared_ptr<Executor>> all;
    {
      const std::lock_guard lock(list().mutex);
      all = list().all;
    }
    for (const auto& one : all) one->expedite();
    if (!any()) return;
    std::this_thread::yield();
    if (round % kRounds != 0) continue;
    if (Clock::now() >= deadline) {
      throw Error(ErrorCode::Timeout, "timed out: calls held by a pass are still pending after the timeout of " +
                                          std::to_string(limit.count()) + " ms; another rank has not issued them");
    }
    check_wait(position, interrupt);
  }
}

std::unique_ptr<Request> request_of(std::shared_ptr<Driver> driver, std::shared_ptr<Run> run) {
  return std::make_unique<RunRequest>(std::move(driver), std::move(run));
}

std::unique_ptr<Request> request_of(std::shared_ptr<Work> work) {
  work->set_part();
  return std::make_unique<WorkRequest>(std::move(work));
}

void issue_on(Communicator& communicator, const Call& call, Requests& requests) {
  Lane lane(false);
  const auto keep = [&] {
    auto issued = lane.take();
    std::ranges::move(issued, std::back_inserter(requests));
  };
  try {
    communicator.issue(call, lane);
  } catch (...) {
    keep();
    rethrow_as_error();
  }
  keep();
}

int run_inline(Schedule& schedule, const std::function<int(const Task&)>& issue) {
  int source = -1;
  for (Schedule::Id id = 0; id < schedule.tasks().size(); ++id) {
    const Task& task = schedule.tasks()[id];
    if (task.kind == Task::Kind::Issue) {
      source = issue(task);
    } else {
      schedule.compute(id);
    }
  }
  return source;
}

}  // namespace mcr
