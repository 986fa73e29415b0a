// SPDX-License-Identifier: Apache-2.0
#include "engine/executor.h"

#include <atomic>
#include <chrono>
#include <initializer_list>
#include <new>
#include <string>
#include <thread>

#include "check.h"
#include "engine/deferred.h"
#include "engine/wait.h"
#include "observe/position.h"
#include "ranks.h"

namespace {

using namespace mcr;
using namespace std::chrono_literals;

// A request that a test ends.
struct Switch final : Request {
  struct State {
    std::atomic<bool> done{false}, fails{false}, expedited{false};
  };
  explicit Switch(std::shared_ptr<State> state) : state(std::move(state)) {}
  bool poll() override {
    if (state->fails) throw Error(ErrorCode::Backend, "the library failed");
    return state->done;
  }
  void expedite() override { state->expedited = true; }
  std::shared_ptr<State> state;
};

// Schedules whose Issues are switches, and the order in which these were started.
struct Bench {
  std::vector<std::shared_ptr<Switch::State>> issues;  // by number, which is the call's tag
  std::vector<int> order;

  Call call() {
    Call made;
    made.tag = static_cast<int>(issues.size());
    issues.push_back(std::make_shared<Switch::State>());
    return made;
  }
  Start start() {
    return [this](const Task& task, Requests& requests) {
      order.push_back(task.call.tag);
      requests.push_back(std::make_unique<Switch>(issues[static_cast<std::size_t>(task.call.tag)]));
    };
  }
  // Exchanges, each behind the one before it.
  void chain(Schedule& schedule, int count) {
    Schedule::Id last = schedule.issue(call());
    while (--count > 0) last = schedule.issue(call(), {last});
  }
  std::shared_ptr<Run> two() {
    auto schedule = std::make_shared<Schedule>();
    chain(*schedule, 2);
    return std::make_shared<Run>(schedule, start());
  }
};

using Order = std::vector<int>;

// A Work of one step, whose requests the test ends.
struct Inner {
  std::vector<std::shared_ptr<Switch::State>> states;
  std::shared_ptr<Work> work;

  explicit Inner(std::size_t count) {
    static const std::string label = "group 'g', rank 0 of 2", backend = "fake";
    work = std::make_shared<Work>(Work::Context{Op::all_reduce, &label, &backend, nullptr, 1s}, Extras{});
    Requests requests;
    for (std::size_t i = 0; i < count; ++i) {
      requests.push_back(std::make_unique<Switch>(states.emplace_back(std::make_shared<Switch::State>())));
    }
    work->attach(std::move(requests));
  }
};

Requests only(std::unique_ptr<Request> request) {
  Requests requests;
  requests.push_back(std::move(request));
  return requests;
}

// A schedule of steps that are Works of their own, one after the other.
struct Steps {
  std::vector<Inner> inner;
  std::vector<int> order;  // in which they were started
  std::shared_ptr<Executor> executor = std::make_shared<Executor>(true);

  Start start() {
    return [this](const Task& task, Requests& requests) {
      order.push_back(task.call.tag);
      requests.push_back(request_of(inner[static_cast<std::size_t>(task.call.tag)].work));
    };
  }
  std::shared_ptr<Run> submit(std::initializer_list<std::size_t> requests) {
    auto schedule = std::make_shared<Schedule>();
    Schedule::Ids before{schedule->wait([](bool) { return true; })};  // so that all Issues are late
    for (const auto count : requests) {
      Call call;
      call.tag = static_cast<int>(inner.size());
      inner.emplace_back(count);
      before = {schedule->issue(call, before)};
    }
    auto run = std::make_shared<Run>(schedule, start());
    executor->submit(run, nullptr);
    executor->drive();
    return run;
  }
};

}  // namespace

TEST(late_issues_keep_the_order_of_submission_whatever_completes_first) {
  Bench bench;
  const auto executor = std::make_shared<Executor>(true);
  const auto first = bench.two(), second = bench.two();
  executor->submit(first, bench.start());
  executor->submit(second, bench.start());
  CHECK((bench.order == Order{0, 2}) && Executor::any());
  bench.issues[2]->done = true;
  executor->drive();
  CHECK((bench.order == Order{0, 2}));  // the second one waits for the first
  bench.issues[0]->done = true;
  executor->drive();
  CHECK((bench.order == Order{0, 2, 1, 3}) && first->issued() && second->issued() && !Executor::any());
  CHECK(!first->poll() && !first->finished());
  bench.issues[1]->done = true;
  CHECK(first->poll() && first->finished() && !second->poll());
  const auto seen = executor->statistics();
  CHECK(seen.delays.issues == 2 && seen.queued == 0 && seen.most_queued == 2);
  CHECK(seen.delays.longest.count() > 0 && seen.delays.sum >= seen.delays.longest);
}

TEST(schedules_are_submitted_while_another_one_computes) {
  const auto executor = std::make_shared<Executor>(true);
  std::atomic<bool> open{false}, entered{false}, left{false};
  Bench bench;
  auto schedule = std::make_shared<Schedule>();
  const auto issued = schedule->issue(bench.call());
  const auto computed = schedule->encode({},
                                         [&](Schedule&) {
                                           const auto deadline = std::chrono::steady_clock::now() + 5s;
                                           entered = true;
                                           while (!open && std::chrono::steady_clock::now() < deadline)
                                             std::this_thread::yield();
                                           left = true;
                                         },
                                         {issued});
  schedule->issue(bench.call(), {computed});
  executor->submit(std::make_shared<Run>(schedule, bench.start()), bench.start());
  bench.issues[0]->done = true;
  std::thread driver([&] { executor->drive(); });
  while (!entered) std::this_thread::yield();
  executor->expedite();  // returns too: the other thread drives
  CHECK(!left && Executor::any());
  open = true;
  driver.join();
  CHECK(!Executor::any());
}

TEST(late_issues_keep_their_order_on_whichever_thread) {
  constexpr int kRuns = 200;
  const auto executor = std::make_shared<Executor>(true);
  std::atomic<int> issued{0};
  const auto drive = [&] {
    while (issued < kRuns) executor->expedite();
  };
  std::thread one(drive), other(drive);
  for (int i = 0; i < kRuns; ++i) {
    auto schedule = std::make_shared<Schedule>();
    auto polls = std::make_shared<int>(0);
    Call call;
    call.tag = i;
    schedule->issue(call, {schedule->wait([polls](bool) { return ++*polls > 3; })});
    const auto start = [&](const Task& task, Requests&) { CHECK(issued.fetch_add(1) == task.call.tag); };
    executor->submit(std::make_shared<Run>(schedule, start), start);
  }
  one.join();
  other.join();
  CHECK(issued == kRuns && executor->synchronize(10s));
}

TEST(a_wait_for_late_issues_ends_with_what_ends_every_wait) {
  static const std::string name = "group";
  const auto position = Position::make(name, name, {0, 1}, 0);
  Bench bench;
  const auto executor = std::make_shared<Executor>(true);
  const auto run = bench.two();
  executor->submit(run, bench.start());
  CHECK(Executor::any());
  CHECK(ranks::failure([&] { Executor::finish(*position, 1ms, nullptr); }).code == ErrorCode::Timeout);
  CHECK(ranks::failure([&] {
          Executor::finish(*position, 10s, [] { throw Error(ErrorCode::Backend, "interrupted"); });
        }).text == "interrupted");
  Position::lose(1, "rank 1 is gone");
  const auto lost = ranks::failure([&] { Executor::finish(*position, 10s, nullptr); });
  Position::forget_losses();
  CHECK(lost.code == ErrorCode::PeerLost && check::has(lost.text, "rank 1 is gone"));
  const auto closed = Position::make(name, name, {0, 1}, 0);
  closed->close();
  CHECK(ranks::failure([&] { Executor::finish(*closed, 10s, nullptr); }).code == ErrorCode::NotInitialized);
  for (const auto& issue : bench.issues) issue->done = true;
  Executor::finish(*position, 10s, nullptr);
  CHECK(!Executor::any());
}

TEST(a_task_knows_that_an_executor_runs_it_and_a_step_that_it_is_one) {
  Bench bench;
  const auto executor = std::make_shared<Executor>(true), other = std::make_shared<Executor>(true);
  auto schedule = std::make_shared<Schedule>();
  const auto issued = schedule->issue(bench.call());
  bool driving = false, here = false, there = true, in_step = true, then_in_step = false;
  const auto calls = [&](Schedule&) {
    driving = Executor::driving();
    here = executor->drives_here();
    there = other->drives_here();
    in_step = Executor::in_step();
    const Executor::InStep step;
    then_in_step = Executor::in_step();
  };
  schedule->issue(bench.call(), {schedule->decode({}, calls, {issued})});
  executor->submit(std::make_shared<Run>(schedule, bench.start()), bench.start());
  bench.issues[0]->done = true;
  CHECK(!Executor::driving() && !Executor::in_step());
  {
    const Executor::InStep step;  // a task that it waits for is no part of it
    CHECK(Executor::driving() && Executor::in_step() && !executor->drives_here());
    executor->drive();
    CHECK(Executor::driving() && Executor::in_step());
  }
  CHECK(driving && here && !there && !in_step && then_in_step);
  CHECK(!Executor::driving() && !Executor::in_step() && !executor->drives_here());
  CHECK((bench.order == Order{0, 1}) && !Executor::any());
}

TEST(calls_that_have_ended_are_not_waited_for_and_keep_their_order) {
  static const std::string name = "group";
  const auto position = Position::make(name, name, {0, 1}, 0);
  Steps steps;
  Inner one(0), other(0);
  for (auto* outer : {&one, &other}) {
    outer->work->attach(only(request_of(steps.executor, steps.submit({1, 1}))));
  }
  CHECK(ranks::failure([&] { wait(*one.work, 1ms, nullptr); }).code == ErrorCode::Timeout);
  CHECK(one.work->expire(ErrorCode::Timeout, "too late") && Executor::any());  // the other call has not ended
  CHECK(ranks::failure([&] { wait(*other.work, 1ms, nullptr); }).code == ErrorCode::Timeout && Executor::any());
  CHECK(ranks::failure([&] { wait(*other.work, 1s, nullptr); }).code == ErrorCode::Timeout && !Executor::any());
  CHECK(other.work->overdue(std::chrono::steady_clock::now() + 1ms, 0s));  // its time counts from the wait's begin
  Executor::finish(*position, 1ms, nullptr);
  for (auto& inner : steps.inner) {
    inner.states[0]->done = true;
    one.work->poll();
    other.work->poll();
  }
  CHECK((steps.order == Order{0, 1, 2, 3}) && one.work->finished() && other.work->finished() && !other.work->failed());
}

TEST(the_steps_of_a_call_that_has_ended_know_it) {
  const auto inner = std::make_unique<Steps>();
  Inner part(0), outer(0);
  part.work->attach(only(request_of(inner->executor, inner->submit({1, 1}))));
  auto held = std::make_shared<Deferred>();
  outer.work->attach(only(std::make_unique<DeferredRequest>(held)));
  CHECK(!outer.work->poll() && outer.work->expire(ErrorCode::Timeout, "too late") && Executor::any());
  held->fulfil(part.work);
  CHECK(!Executor::any());
  for (auto& step : inner->inner) {
    step.states[0]->done = true;
    outer.work->poll();
  }
  CHECK(outer.work->finished());
}

TEST(a_call_that_carries_several_is_waited_for_until_all_have_ended) {
  Steps steps;
  Inner carrier(0);
  carrier.work->attach(only(request_of(steps.executor, steps.submit({1, 1}))));
  Deferred one, other;
  one.abandon();
  carrier.work->set_part();  // as long as calls are being added
  one.fulfil(carrier.work);
  other.fulfil(carrier.work);
  carrier.work->abandon_part();
  one.abandon();
  CHECK(Executor::any());
  other.abandon();
  CHECK(!Executor::any());
}

TEST(a_task_may_throw_anything) {
  for (const int kind : {0, 1, 2}) {
    Bench bench;
    auto schedule = std::make_shared<Schedule>();
    const auto issued = schedule->issue(bench.call());
    const auto thrown = schedule->decode({},
                                         [kind](Schedule&) {
                                           if (kind == 0) throw std::bad_alloc();
                                           if (kind == 1) throw 5;
                                           throw Error(ErrorCode::Timeout, "too late");
                                         },
                                         {issued});
    schedule->issue(bench.call(), {thrown});
    const auto executor = std::make_shared<Executor>(true);
    const auto run = std::make_shared<Run>(schedule, bench.start());
    executor->submit(run, bench.start());
    bench.issues[0]->done = true;
    executor->drive();
    CHECK(run->issued() && run->finished() && !Executor::any() && (bench.order == Order{0}));
    const auto got = ranks::failure([&] { run->poll(); });
    CHECK(got.code == (kind == 2 ? ErrorCode::Timeout : ErrorCode::Backend) && !got.text.empty());
  }
}

TEST(late_issues_need_a_stage) {
  Bench bench;
  auto schedule = std::make_shared<Schedule>();
  bench.chain(*schedule, 2);
  const auto got = ranks::failure([&] { Run run(schedule); });
  CHECK(got.code == ErrorCode::InvalidArgument && check::has(got.text, "late"));
}

TEST(other_requests_are_polled_to_their_end_after_a_failure) {
  Bench bench;
  auto schedule = std::make_shared<Schedule>();
  const auto one = schedule->issue(bench.call());
  schedule->issue(bench.call());
  schedule->copy({}, {}, DType::Byte, {one});
  const auto run = std::make_shared<Run>(schedule);
  const auto request = request_of(nullptr, run);
  run->begin(bench.start());
  CHECK(!request->poll() && !request->lingers());
  bench.issues[0]->fails = true;
  CHECK(ranks::failure([&] { request->poll(); }).text.find("the library failed") != std::string::npos);
  CHECK(!request->poll() && request->lingers());
  bench.issues[1]->done = true;
  CHECK(request->poll() && !request->lingers());
}

TEST(a_step_that_has_failed_is_polled_until_its_library_is_done) {
  Steps steps;
  const auto run = steps.submit({2});
  const auto request = request_of(steps.executor, run);
  CHECK(!request->poll());
  steps.inner[0].states[0]->fails = true;
  CHECK(check::has(ranks::failure([&] { request->poll(); }).text, "the library failed"));
  CHECK(!request->poll() && !run->finished());
  steps.inner[0].states[1]->done = true;
  CHECK(request->poll() && run->finished());
}

TEST(a_step_that_has_expired_is_polled_until_its_library_is_done) {
  Steps steps;
  const auto run = steps.submit({1});
  const auto request = request_of(steps.executor, run);
  CHECK(!request->poll() && steps.inner[0].work->expire(ErrorCode::Timeout, "too late"));
  CHECK(ranks::failure([&] { request->poll(); }).code == ErrorCode::Timeout);
  CHECK(!request->poll() && !run->finished());
  steps.inner[0].states[0]->done = true;
  CHECK(request->poll() && run->finished());
}

TEST(steps_that_are_overdue_run_on_and_keep_their_order) {
  Steps steps;
  const auto first = steps.submit({1, 1}), second = steps.submit({1, 1});
  CHECK((steps.order == Order{0}));
  const auto later = std::chrono::steady_clock::now() + 10s;
  const auto look = [&] {
    for (const auto& inner : steps.inner) {
      if (inner.work->overdue(later, 0s)) inner.work->expire(ErrorCode::Timeout, "too late");
    }
    steps.executor->drive();
  };
  CHECK(!steps.inner[0].work->overdue(later - 10s, 0s));  // starts its clock
  look();
  CHECK((steps.order == Order{0}) && !first->issued() && Executor::any());
  for (auto& inner : steps.inner) {
    inner.states[0]->done = true;
    look();
  }
  CHECK((steps.order == Order{0, 1, 2, 3}) && first->poll() && second->poll() && !Executor::any());
}

TEST(calls_that_are_overdue_end_unless_they_carry_others) {
  Inner call(1), carrier(1);
  Deferred held;
  held.fulfil(carrier.work);
  const auto now = std::chrono::steady_clock::now();
  for (const auto& one : {call, carrier}) CHECK(!one.work->overdue(now, 0s));
  CHECK(call.work->overdue(now + 2s, 500ms) && !call.work->overdue(now + 2s, 1s));
  CHECK(!carrier.work->overdue(now + 2s, 0s));
  call.states[0]->done = true;
  CHECK(call.work->poll() && !call.work->overdue(now + 2s, 0s));
}

TEST(a_call_that_a_thread_waits_for_is_not_overdue_before_the_wait_ends) {
  Inner call(1);
  const auto now = std::chrono::steady_clock::now();
  CHECK(!call.work->overdue(now, 0s));
  call.work->set_waited_for(500ms, now + 2500ms);  // not longer than the call's own limit of 1 s
  CHECK(call.work->overdue(now + 2s, 0s));
  for (const auto limit : {5s, 2s}) call.work->set_waited_for(limit, now + 1s + limit);
  CHECK(!call.work->overdue(now + 6s, 0s) && !call.work->overdue(now + 7s, 1s));
  CHECK(call.work->overdue(now + 7s, 500ms));
  const Inner other(1);
  CHECK(!other.work->overdue(now, 0s));
  CHECK(ranks::failure([&] { wait(*other.work, 1100ms, nullptr); }).code == ErrorCode::Timeout);
  CHECK(!other.work->overdue(now + 1100ms, 0s) && other.work->overdue(now + 1h, 0s));
}

TEST(the_work_of_a_call_in_steps_is_finished_with_its_steps) {
  Inner inner(2), outer(0);
  outer.work->attach(only(request_of(inner.work)));
  CHECK(!outer.work->poll());
  inner.states[0]->fails = true;
  CHECK(outer.work->poll() && outer.work->failed());
  CHECK(outer.work->poll() && !outer.work->finished());
  inner.states[1]->done = true;
  CHECK(outer.work->poll() && outer.work->finished());
}

TEST(a_held_call_whose_carrier_has_failed_is_polled_until_the_library_is_done) {
  Inner carrier(2), outer(0);
  const auto held = std::make_shared<Deferred>();
  outer.work->attach(only(std::make_unique<DeferredRequest>(held)));
  CHECK(!outer.work->poll());
  held->fulfil(carrier.work);
  carrier.states[0]->fails = true;
  CHECK(outer.work->poll() && outer.work->failed());
  CHECK(outer.work->poll() && !outer.work->finished());
  carrier.states[1]->done = true;
  CHECK(outer.work->poll() && outer.work->finished());
}

TEST(an_issue_that_throws_leaves_the_earlier_ones_running) {
  Bench bench;
  auto schedule = std::make_shared<Schedule>();
  schedule->issue(bench.call());
  schedule->issue(bench.call());
  const auto run = std::make_shared<Run>(schedule);
  const auto start = bench.start();
  const auto got = ranks::failure([&] {
    run->begin([&](const Task& task, Requests& requests) {
      if (task.call.tag == 1) throw Error(ErrorCode::Unsupported, "not this one");
      start(task, requests);
    });
  });
  CHECK(got.code == ErrorCode::Unsupported && run->issued() && !run->finished());
  bench.issues[0]->done = true;
  CHECK(run->finished());
}

TEST(a_wait_learns_that_a_thread_waits) {
  const auto executor = std::make_shared<Executor>(true);
  auto schedule = std::make_shared<Schedule>();
  schedule->issue({}, {schedule->wait([](bool expedited) { return expedited; })});
  const auto run = std::make_shared<Run>(schedule, [](const Task&, Requests&) {});
  executor->submit(run, nullptr);
  executor->drive();
  CHECK(!run->issued() && executor->statistics().queued == 1);
  CHECK(executor->synchronize(10s) && run->poll());
}

TEST(an_expedited_run_expedites_what_it_starts_later) {
  Bench bench;
  const auto executor = std::make_shared<Executor>(true);
  const auto run = bench.two();
  executor->submit(run, bench.start());
  request_of(executor, run)->expedite();
  CHECK(bench.issues[0]->expedited);
  bench.issues[0]->done = true;
  executor->drive();
  CHECK((bench.order == Order{0, 1}) && bench.issues[1]->expedited);
}
