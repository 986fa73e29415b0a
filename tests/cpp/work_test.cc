// SPDX-License-Identifier: Apache-2.0
#include "runtime/work.h"

#include <stdexcept>
#include <thread>

#include "check.h"
#include "engine/executor.h"
#include "ranks.h"
#include "runtime/progress.h"

namespace {

using namespace mcr;
using namespace std::chrono_literals;

// Complete after some polls, or when told; fails if it has a reason to.
class Countdown : public Request {
 public:
  explicit Countdown(int polls, std::string problem = {}, int source = -1)
      : left_(polls), problem_(std::move(problem)), source_(source) {}
  bool poll() override {
    if (--left_ > 0) return false;
    if (!problem_.empty()) throw Error(ErrorCode::Backend, problem_);
    return true;
  }
  int source() const override { return source_; }

 private:
  int left_;
  std::string problem_;
  int source_;
};

class Gate : public Request {
 public:
  explicit Gate(const std::atomic<bool>& open, std::atomic<int>* polls = nullptr) : open_(open), polls_(polls) {}
  bool poll() override {
    const bool open = open_;
    if (polls_ != nullptr) ++*polls_;
    return open;
  }

 private:
  const std::atomic<bool>& open_;
  std::atomic<int>* const polls_;
};

std::shared_ptr<Work> work_of(std::unique_ptr<Request> request, Extras extras = {}, bool brief = false) {
  static const std::string label = "group 'g', rank 0 of 2";
  static const std::string backend = "fake";
  auto work = std::make_shared<Work>(Work::Context{Op::all_reduce, &label, &backend, nullptr, 1s, 0, -1, brief},
                                     std::move(extras));
  Requests requests;
  requests.push_back(std::move(request));
  work->attach(std::move(requests));
  return work;
}

}  // namespace

TEST(a_work_without_requests_is_complete_at_once) {
  const std::string label = "g";
  Work work(Work::Context{Op::barrier, &label, nullptr, nullptr, 1s}, {});
  CHECK(!work.completed() && work.poll() && work.completed() && work.source() == -1);
}

TEST(waiting) {
  auto work = work_of(std::make_unique<Countdown>(500, "", 3));
  CHECK(work->source() == -1 && !work->failed());
  CHECK(work->wait_for(10s) && work->completed() && work->source() == 3);
  CHECK(work->wait_for(0s) && work->wait_for(10s));  // again is fine
  work->rethrow();
}

TEST(an_error_keeps_its_cause) {
  struct Known : Cause {};
  const std::shared_ptr<const Cause> cause = std::make_shared<Known>();
  struct Raising : Request {
    explicit Raising(std::shared_ptr<const Cause> why) : cause(std::move(why)) {}
    bool poll() override { throw Error(ErrorCode::Backend, "a user's function").caused_by(cause); }
    std::shared_ptr<const Cause> cause;
  };
  const auto work = work_of(std::make_unique<Raising>(cause));
  CHECK(work->wait_for(10s) && work->failed());
  for (int again = 0; again < 2; ++again) {
    try {
      wait(*work, 10ms, nullptr);
      CHECK(false);
    } catch (const Error& error) {
      CHECK(error.cause() == cause && check::has(error.what(), "fake.all_reduce", "a user's function"));
    }
  }
}

TEST(a_wait_ends_in_time) {
  const std::atomic<bool> open{false};
  auto work = work_of(std::make_unique<Gate>(open));
  CHECK(!work->wait_for(0s));
  const auto before = std::chrono::steady_clock::now();
  CHECK(!work->wait_for(20ms));
  const auto took = std::chrono::steady_clock::now() - before;
  CHECK(took >= 20ms && took < 10s);
  const auto got = ranks::failure([&] { wait(*work, 10ms, nullptr); });
  CHECK(got.code == ErrorCode::Timeout && check::has(got.text, "fake.all_reduce", "rank 0 of 2", "10 ms"));
  CHECK(!work->completed());
}

TEST(a_wait_can_be_interrupted) {
  const std::atomic<bool> open{false};
  auto work = work_of(std::make_unique<Gate>(open));
  const auto got = ranks::failure([&] { wait(*work, 60s, [] { throw Error(ErrorCode::Backend, "Ctrl-C"); }); });
  CHECK(got.text == "Ctrl-C" && !work->completed());
}

TEST(errors_are_kept) {
  auto work = work_of(std::make_unique<Countdown>(3, "link down"));
  CHECK(work->wait_for(10s) && work->completed() && work->failed());
  for (int i = 0; i < 2; ++i) {
    const auto got = ranks::failure([&] { work->rethrow(); });
    CHECK(got.code == ErrorCode::Backend && check::has(got.text, "fake.all_reduce", "group 'g'", "link down"));
  }
}

TEST(last_steps_run_once_and_in_order) {
  std::string order;
  Extras extras;
  extras.finish.emplace_back([&] { order += 'a'; });
  extras.finish.emplace_back([&] { order += 'b'; });
  auto work = work_of(std::make_unique<Countdown>(2), std::move(extras));
  CHECK(!work->poll() && order.empty());
  CHECK(work->poll() && work->poll() && order == "ab");
}

TEST(an_error_in_the_last_steps_is_the_works) {
  Extras extras;
  extras.finish.emplace_back([] { throw std::runtime_error("no memory"); });
  auto work = work_of(std::make_unique<Countdown>(1), std::move(extras));
  CHECK(work->poll());
  CHECK(check::has(ranks::failure([&] { work->rethrow(); }).text, "no memory"));
}

// A step of a pass may make calls, whose polls must move all data.
TEST(only_the_requests_of_a_brief_work_are_polled_briefly) {
  struct Asks : Request {
    explicit Asks(int polls) : left(polls) {}
    bool poll() override {
      CHECK(BriefPolls::here());
      return --left == 0;
    }
    int left;
  };
  struct Lock final : CallerLock {
    void release() override { CHECK(false); }
  };
  for (const int polls : {1, 2}) {  // the end is seen at the start, or in the wait under the caller's lock
    int steps = 0;
    Extras extras;
    extras.after.emplace_back([&] {
      CHECK(!BriefPolls::here());
      ++steps;
    });
    const auto work = work_of(std::make_unique<Asks>(polls), std::move(extras), true);
    work->begin();
    Lock lock;
    wait(*work, 10s, nullptr, &lock);
    CHECK(work->finished() && steps == 1 && !BriefPolls::here());
  }
}

// A thread that sees the work complete also sees its error, while another thread is just writing it.
TEST(an_error_is_there_as_soon_as_the_work_is_complete) {
  for (int i = 0; i < 2000; ++i) {
    auto work = work_of(std::make_unique<Countdown>(20, "link down"));
    std::atomic<bool> silent{false};
    const auto look = [&] {
      while (!work->poll()) {
      }
      if (!work->failed()) silent = true;
    };
    {
      const std::jthread other(look);
      look();
    }
    CHECK(!silent);
  }
}

TEST(callbacks) {
  std::atomic<bool> open{false};
  auto work = work_of(std::make_unique<Gate>(open));
  int before = 0, after = 0;
  work->on_done([&] {
    ++before;
    CHECK(work->completed() && work->wait_for(0s));
  });
  CHECK(!work->poll() && before == 0);
  open = true;
  CHECK(work->poll() && before == 1);
  work->on_done([&] { ++after; });
  CHECK(after == 1 && before == 1 && work->poll());
}

TEST(callbacks_from_several_threads_run_once_each) {
  for (int round = 0; round < 200; ++round) {
    auto work = work_of(std::make_unique<Countdown>(20));
    std::atomic<int> calls{0};
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        work->on_done([&] { ++calls; });
        work->wait_for(10s);
      });
    }
    threads.clear();
    CHECK(calls == 3);
  }
}

TEST(a_dropped_work_completes) {
  std::atomic<bool> finished{false};
  auto memory = std::make_shared<int>(0);
  const std::weak_ptr<int> kept = memory;
  Progress progress;
  {
    Extras extras;
    extras.kept = std::move(memory);
    extras.finish.emplace_back([&] { finished = true; });
    progress.watch(work_of(std::make_unique<Countdown>(5), std::move(extras)));
  }
  for (int i = 0; i < 10000 && !kept.expired(); ++i) std::this_thread::sleep_for(1ms);
  CHECK(finished && kept.expired());
}

TEST(draining) {
  std::atomic<bool> open{false};
  Progress progress;
  CHECK(progress.drain(0s));
  progress.watch(work_of(std::make_unique<Gate>(open)));
  CHECK(!progress.drain(5ms));
  open = true;
  CHECK(progress.drain(10s));
}

TEST(draining_does_not_wait_for_a_request_that_runs_on_after_an_error) {
  std::atomic<bool> open{false}, other{false};
  auto memory = std::make_shared<int>(0);
  const std::weak_ptr<int> kept = memory;
  Progress progress;
  Extras extras;
  extras.kept = std::move(memory);
  auto late = work_of(std::make_unique<Gate>(open), std::move(extras));
  progress.watch(late);
  progress.watch(work_of(std::make_unique<Gate>(other)));
  CHECK(late->expire(ErrorCode::Timeout, "too late") && !progress.drain(5ms));  // because of the other one
  other = true;
  CHECK(progress.drain(10s) && progress.watched(9).size() == 1);
  late.reset();
  CHECK(!kept.expired());  // the library may still write to it
  open = true;
  for (int i = 0; i < 10000 && !kept.expired(); ++i) std::this_thread::sleep_for(1ms);
  CHECK(kept.expired());
}

TEST(draining_counts_no_parts_of_other_calls) {
  std::atomic<bool> open{false};
  Progress progress;
  const auto part = work_of(std::make_unique<Gate>(open));
  part->set_part();
  progress.watch(part);
  CHECK(progress.drain(5ms) && !part->completed());
  open = true;
  CHECK(part->wait_for(10s));
}

TEST(draining_can_be_interrupted) {
  struct Interrupted {};
  std::atomic<bool> open{false};
  Progress progress;
  progress.watch(work_of(std::make_unique<Gate>(open)));
  bool interrupted = false;
  try {
    progress.drain(60s, [] { throw Interrupted(); });
  } catch (const Interrupted&) {
    interrupted = true;
  }
  CHECK(interrupted);
  open = true;
  CHECK(progress.drain(10s));
}

TEST(a_work_is_forgotten_at_either_end) {
  Progress progress;
  progress.set_patience(20);
  std::atomic<bool> open = false;
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 4; ++i) progress.watch(works.emplace_back(work_of(std::make_unique<Gate>(open))));
  CHECK(works[0].use_count() > 1);
  progress.forget(*works[1]);  // neither the oldest nor the newest
  CHECK(progress.watched(9).size() == 4);
  progress.forget(*works[3]);
  progress.forget(*works[0]);
  CHECK(progress.watched(9).size() == 2);
  progress.forget(*works[0]);  // again is fine
  CHECK(progress.watched(9).size() == 2);
  open = true;
  CHECK(progress.drain(10s) && progress.watched(9).empty());
  progress.forget(*works[1]);
}

TEST(older_works_do_not_hide_those_that_are_wanted) {
  Progress progress;
  progress.set_patience(20);
  std::atomic<bool> open = false;
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 9; ++i) progress.watch(works.emplace_back(work_of(std::make_unique<Gate>(open))));
  const auto later = [&](Work& work) { return &work == works[6].get() || &work == works[8].get(); };
  CHECK(progress.watched(2, later) == std::vector({works[6], works[8]}));
  CHECK(progress.watched(1, later) == std::vector({works[6]}));
  CHECK(progress.watched(0, later).empty());
  open = true;
  CHECK(progress.drain(10s));
}

TEST(stopping_leaves_the_rest_to_who_waits) {
  std::atomic<bool> open{false};
  auto work = work_of(std::make_unique<Gate>(open));
  Progress progress;
  progress.watch(work);
  progress.stop();
  progress.stop();
  open = true;
  CHECK(work->wait_for(10s));
}

TEST(a_thread_that_sleeps_ends_a_nap_during_which_schedules_are_pending) {
  Progress progress;
  progress.set_patience(100'000'000);  // naps of more than an hour
  progress.poll_often();
  std::atomic<bool> open{false};
  std::atomic<int> polls{0};
  const auto work = work_of(std::make_unique<Gate>(open, &polls));
  progress.watch(work);
  while (polls == 0) std::this_thread::yield();
  open = true;
  progress.enter_sleep();
  for (int i = 0; i < 20000 && !work->finished(); ++i) std::this_thread::sleep_for(1ms);
  CHECK(work->finished());
  progress.leave_sleep();
  progress.poll_seldom();
}

TEST(operations_that_cannot_end_do_not_hide_others) {
  std::atomic<bool> open{false};
  Progress progress;
  for (int i = 0; i < 300; ++i) progress.watch(work_of(std::make_unique<Gate>(open)));
  auto last = work_of(std::make_unique<Countdown>(1));
  progress.watch(last);
  for (int i = 0; i < 10000 && !last->completed(); ++i) std::this_thread::sleep_for(1ms);
  CHECK(last->completed());
  open = true;
  CHECK(progress.drain(60s));
}

TEST(thousands_from_several_threads) {
  constexpr int kThreads = 4, kWorks = 2000;
  Progress progress;
  std::atomic<int> finished{0}, called{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::shared_ptr<Work>> mine;
      for (int i = 0; i < kWorks; ++i) {
        Extras extras;
        extras.finish.emplace_back([&] { ++finished; });
        auto work = work_of(std::make_unique<Countdown>(1 + (i * 7 + t) % 9), std::move(extras));
        work->on_done([&] { ++called; });
        progress.watch(work);
        if (i % 3 == 0) mine.push_back(std::move(work));
        if (i % 50 == 0) CHECK(mine.back()->wait_for(60s));
      }
      for (auto& work : mine) CHECK(work->wait_for(60s));
    });
  }
  threads.clear();
  CHECK(progress.drain(60s));
  // drain() returns when the works are complete; their callbacks may be in the last one's hands.
  for (int i = 0; i < 10000 && called < kThreads * kWorks; ++i) std::this_thread::sleep_for(1ms);
  CHECK(finished == kThreads * kWorks && called == kThreads * kWorks);
}

TEST(a_complete_work_does_not_keep_what_has_started_its_late_issues) {
  for (const bool fails : {false, true}) {
    auto communicator = std::make_shared<int>(0);
    const std::weak_ptr<int> known = communicator;
    const auto executor = std::make_shared<Executor>(true);
    const auto schedule = Schedule::make();
    schedule->issue({}, {schedule->wait([](bool) { return true; })});
    const auto run = std::make_shared<Run>(schedule, [kept = std::move(communicator), fails](const Task&, Requests&) {
      if (fails) throw Error(ErrorCode::Backend, "link down");
    });
    executor->submit(run, nullptr);
    const auto work = work_of(request_of(executor, run));
    CHECK(!known.expired() && work->poll() && work->failed() == fails && known.expired());
  }
}

TEST(a_run_that_has_no_work_any_more_ends_without_its_executors_lock) {
  struct Asks {
    ~Asks() { *queued = executor->statistics().queued; }
    Executor* executor;
    int64_t* queued;
  };
  const auto executor = std::make_shared<Executor>(true);
  bool due = false;
  int64_t queued = -1;
  {
    const auto schedule = Schedule::make();
    schedule->own(std::shared_ptr<Asks>(new Asks{executor.get(), &queued}));
    schedule->issue({}, {schedule->wait([&due](bool) { return due; })});
    executor->submit(std::make_shared<Run>(schedule, [](const Task&, Requests&) {}), nullptr);
  }
  CHECK(executor->statistics().queued == 1 && queued == -1);
  due = true;
  executor->drive();
  CHECK(queued == 0 && executor->statistics().queued == 0);
}
