// SPDX-License-Identifier: Apache-2.0
// What is known of calls that do not end: positions, activities, operations that expire, the end of communication.
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "check.h"
#include "engine/dispatch.h"
#include "engine/pass.h"
#include "observe/activity.h"
#include "observe/interrupt.h"
#include "observe/position.h"
#include "observe/stop.h"
#include "ranks.h"

namespace {

using namespace mcr;
using namespace std::chrono_literals;

const std::string kGroup = "g";
const std::string kLabel = "group 'g', rank 0 of 2";

Call call_of(Op op, int root = 0) {
  Call call;
  call.op = op;
  call.dtype = DType::Float;
  call.root = root;
  return call;
}

class Never : public Request {
 public:
  bool poll() override { return false; }
};

}  // namespace

TEST(positions_count_collectives_and_messages_apart) {
  const auto position = Position::make(kGroup, kLabel, {0, 1}, 0);
  CHECK(position->enter(call_of(Op::all_reduce), nullptr, 4) == 1);
  CHECK(position->enter(call_of(Op::send), nullptr, 4) == 1);
  auto broadcast = call_of(Op::broadcast, 1);
  broadcast.asynchronous = true;
  CHECK(position->enter(broadcast, nullptr, 8) == 2);
  const auto reading = position->read();
  CHECK(reading.collectives == 2 && reading.messages == 1 && reading.newest.size() == 2);
  CHECK(reading.newest[1].op == Op::broadcast && reading.newest[1].root == 1 && reading.newest[1].asynchronous);
  CHECK(reading.newest[0].root == -1 && reading.newest[0].bytes == 4);
}

TEST(positions_keep_the_newest_and_a_digest_of_all) {
  const auto one = Position::make(kGroup, kLabel, {0, 1}, 0);
  const auto other = Position::make(kGroup, kLabel, {0, 1}, 1);
  other->enter(call_of(Op::barrier), nullptr, 0);
  one->enter(call_of(Op::all_reduce), nullptr, 4);
  for (int i = 0; i < 200; ++i) {
    one->enter(call_of(Op::all_reduce), nullptr, 4);
    other->enter(call_of(Op::all_reduce), nullptr, 4);
  }
  const auto mine = one->read();
  CHECK(mine.newest.size() == Position::kKept && mine.newest.front().seq == 202 - 64 && mine.newest.back().seq == 201);
  CHECK(mine.newest.back().history != other->read().newest.back().history);
  CHECK(one->read(200).newest.size() == 2);
  CHECK(Position::all().size() >= 2);
}

TEST(a_collective_that_is_withdrawn_does_not_count) {
  const auto one = Position::make(kGroup, kLabel, {0, 1}, 0), other = Position::make(kGroup, kLabel, {0, 1}, 1);
  for (int i = 0; i < 200; ++i) {
    if (i % 50 == 0) {
      one->withdraw(one->enter(call_of(Op::broadcast), nullptr, 4));
      CHECK(one->read().collectives == i &&
            one->read().newest.size() == std::min<std::size_t>(static_cast<std::size_t>(i), 63));
    }
    for (const auto& each : {one, other}) each->enter(call_of(Op::all_reduce), nullptr, 4);
  }
  CHECK(one->read().newest.back().history == other->read().newest.back().history);
  const auto early = one->enter(call_of(Op::barrier), nullptr, 0);
  one->enter(call_of(Op::all_reduce), nullptr, 4);
  one->withdraw(early);  // another thread has made one since
  CHECK(one->read().collectives == 202);
}

TEST(positions_of_groups_that_are_gone_are_not_listed) {
  const auto before = Position::all().size();
  Position::make(kGroup, kLabel, {0}, 0);
  CHECK(Position::all().size() == before);
  const auto kept = Position::make(kGroup, kLabel, {0}, 0);  // by the program, although the group is destroyed
  CHECK(Position::all().size() == before + 1);
  kept->end();
  CHECK(Position::all().size() == before);
}

TEST(a_group_with_the_name_of_a_lost_one_is_not_lost) {
  const auto old = Position::make(kGroup, kLabel, {0, 7}, 0);
  Position::lose(7, "gone");
  CHECK(Position::lost(kLabel) != nullptr);
  Position::forget_losses();
  const auto made = Position::make(kGroup, kLabel, {0, 7}, 0);
  CHECK(old->lost() != nullptr && made->lost() == nullptr && Position::lost(kLabel) == nullptr);
}

TEST(new_groups_can_have_a_rank_whose_place_another_process_has_taken) {
  const auto old = Position::make(kGroup, kLabel, {0, 7}, 0);
  Position::lose(7, "gone");
  Position::lose(8, "gone too");
  Position::regain(7);
  const auto made = Position::make(kGroup, kLabel, {0, 7}, 0);
  const auto other = Position::make(kGroup, kLabel, {0, 8}, 0);
  CHECK(old->lost() != nullptr && made->lost() == nullptr && other->lost() != nullptr);
  Position::lose(7, "gone again");
  CHECK(*old->lost() == "gone" && *made->lost() == "gone again");
  Position::forget_losses();
}

TEST(positions_may_be_read_while_threads_enter) {
  const auto position = Position::make(kGroup, kLabel, {0, 1}, 0);
  std::atomic<bool> stop{false};
  std::atomic<int> reads{0};
  std::thread reader([&] {
    while (!stop) {
      const auto reading = position->read();
      ++reads;
      CHECK(reading.newest.empty() || reading.newest.back().seq == reading.collectives);
    }
  });
  while (reads == 0) std::this_thread::yield();
  std::vector<std::thread> writers;
  for (int i = 0; i < 3; ++i) {
    writers.emplace_back([&] {
      for (int k = 0; k < 5000; ++k) position->enter(call_of(Op::all_reduce), nullptr, k);
    });
  }
  for (auto& writer : writers) writer.join();
  stop = true;
  reader.join();
  CHECK(position->read().collectives == 15000);
}

TEST(activities_are_seen_from_other_threads_and_the_outermost_counts) {
  CHECK(Activity::all().empty());
  {
    const Activity outer({.label = &kLabel, .seq = 7, .bytes = 12, .limit = 5s, .op = Op::all_gather});
    const Activity inner({.label = &kGroup, .seq = 8});
    std::thread([] {
      const auto all = Activity::all();
      CHECK(all.size() == 1 && all[0].what.seq == 7 && all[0].what.op == Op::all_gather && all[0].what.limit == 5s);
      CHECK(all[0].what.label == &kLabel && !all[0].what.connects && !all[0].what.waits);
    }).join();
  }
  CHECK(Activity::all().empty());
}

TEST(a_paused_activity_is_not_seen_and_begins_anew) {
  const Activity outer({.label = &kLabel, .seq = 7, .limit = 5s, .op = Op::all_gather});
  const auto before = Activity::all().at(0);
  {
    const Activity::Pause pause;
    CHECK(Activity::all().empty());
    const Activity::Pause again;  // does nothing
    const Activity inner({.label = &kGroup, .seq = 8});
    CHECK(Activity::all().at(0).what.seq == 8);
  }
  const auto after = Activity::all().at(0);
  CHECK(after.turn != before.turn && after.what.seq == 7 && after.what.limit == 5s && after.what.label == &kLabel);
  CHECK(after.what.op == Op::all_gather);
}

TEST(a_call_that_polls_waits_meanwhile) {
  {
    const Activity::Polling none;  // the thread is in no call
    CHECK(Activity::all().empty());
  }
  const Activity call({.label = &kLabel, .seq = 7, .limit = 5s, .op = Op::all_gather});
  const auto before = Activity::all().at(0);
  uint64_t meanwhile = 0;
  {
    const Activity::Polling polling;
    const auto reading = Activity::all().at(0);
    meanwhile = reading.turn;
    CHECK(reading.what.waits && reading.what.seq == 7 && reading.what.limit == 5s && reading.what.label == &kLabel);
  }
  const auto after = Activity::all().at(0);
  CHECK(!after.what.waits && after.what.seq == 7 && after.what.limit == 5s && after.what.op == Op::all_gather);
  CHECK(before.turn != meanwhile && meanwhile != after.turn);
}

TEST(a_wait_in_a_call_has_an_activity_of_its_own) {
  static const std::string backend = "fake";
  class Looks : public Request {
   public:
    explicit Looks(std::vector<Activity::Reading>& seen) : seen_(seen) {}
    bool poll() override {
      if (++polls_ == 100) seen_ = Activity::all();
      return polls_ == 100;
    }

   private:
    std::vector<Activity::Reading>& seen_;
    int polls_ = 0;
  };
  const Activity outer({.label = &kLabel, .seq = 7, .limit = 1ms});
  const auto before = Activity::all().at(0);
  std::vector<Activity::Reading> seen;
  Work work(Work::Context{Op::all_reduce, &kLabel, &backend, nullptr, 60s, 8, 4}, Extras{});
  Requests requests;
  requests.push_back(std::make_unique<Looks>(seen));
  work.attach(std::move(requests));
  wait(work, 60s, nullptr);
  CHECK(seen.size() == 1 && seen[0].turn != before.turn);
  CHECK(seen.at(0).what.waits && seen.at(0).what.seq == 8 && seen.at(0).what.limit == 60s);
  const auto after = Activity::all().at(0);
  CHECK(after.turn != before.turn && !after.what.waits && after.what.seq == 7 && after.what.limit == 1ms);
}

TEST(a_call_that_a_pass_of_the_program_hands_on_has_an_activity_again) {
  struct Looks : Communicator {
    explicit Looks(std::vector<Activity::Reading>& all) : seen(all) {}
    bool supports(const Call&) const override { return true; }
    void issue(const Call&, Lane&) override { seen = Activity::all(); }
    std::vector<Activity::Reading>& seen;
  };
  struct Program : Pass {
    std::string_view name() const override { return "program"; }
    Outcome handle(Passage& passage, const Next& next) override {
      const Activity::Pause pause;
      CHECK(Activity::all().empty());
      auto outcome = next(passage);
      CHECK(Activity::all().empty());
      return outcome;
    }
  };
  std::vector<Activity::Reading> seen;
  ranks::Alone alone([&] { return std::make_unique<Looks>(seen); }, 2);
  alone.group().set_passes({std::make_shared<Program>(), std::make_shared<Program>()});
  std::vector<float> data(4);
  auto call = call_of(Op::all_reduce);
  call.out = ranks::buffer(data);
  ranks::run(alone.group(), call);
  CHECK(seen.size() == 1 && !seen[0].what.waits && seen[0].what.seq == 1 && seen[0].what.limit == 60s);
  CHECK(seen.at(0).what.op == Op::all_reduce && Activity::all().empty());
}

TEST(activities_of_a_thread_have_different_turns) {
  uint64_t turns[2];
  for (auto& turn : turns) {
    const Activity activity({.label = &kLabel});
    turn = Activity::all().at(0).turn;
  }
  CHECK(turns[0] != turns[1]);
}

TEST(activities_may_be_read_while_they_change) {
  std::atomic<bool> stop{false};
  std::thread worker([&] {
    for (int64_t i = 1; !stop; ++i) const Activity activity({.label = &kLabel, .seq = i, .bytes = i});
  });
  int64_t read = 0;
  const auto deadline = std::chrono::steady_clock::now() + 60s;  // a busy machine may not let the thread begin for long
  for (int i = 0; i < 20000 || (read == 0 && std::chrono::steady_clock::now() < deadline); ++i) {
    for (const auto& reading : Activity::all()) {
      ++read;
      CHECK(reading.what.seq == reading.what.bytes);
    }
  }
  CHECK(read > 0);
  stop = true;
  worker.join();
}

TEST(an_operation_that_expires_fails_and_calls_back) {
  static const std::string backend = "fake";
  auto work = std::make_shared<Work>(Work::Context{Op::all_reduce, &kLabel, &backend, nullptr, 1s, 3, 4}, Extras{});
  Requests requests;
  requests.push_back(std::make_unique<Never>());
  work->attach(std::move(requests));
  bool called = false;
  work->on_done([&] { called = true; });
  const auto now = std::chrono::steady_clock::now();
  CHECK(work->observed(now) == 0ns && work->observed(now + 2s) == 2s);
  CHECK(!work->poll() && work->expire(ErrorCode::Timeout, "too late") && called);
  CHECK(work->completed() && work->failed() && !work->finished() && !work->expire(ErrorCode::Timeout, "again"));
  const auto got = ranks::failure([&] { work->rethrow(); });
  CHECK(got.code == ErrorCode::Timeout && got.text == "too late");
}

TEST(a_time_limit_names_call_number_and_size) {
  static const std::string backend = "fake";
  Work work(Work::Context{Op::all_reduce, &kLabel, &backend, nullptr, 1s, 3, 4}, Extras{});
  Requests requests;
  requests.push_back(std::make_unique<Never>());
  work.attach(std::move(requests));
  try {
    wait(work, 10ms, nullptr);
    CHECK(false);
  } catch (const Error& error) {
    CHECK(check::has(error.what(), "fake.all_reduce", kLabel,
                     "collective 3 of 4 bytes timed out: still running after the timeout of 10 ms"));
    CHECK(error.subject() != nullptr && error.subject()->seq == 3 && error.subject()->label == kLabel);
  }
}

namespace {

// Handlers of SIGINT as programs install them: each counts, and most call their predecessor.
int called_python = 0;
int called_later = 0;
int called_last = 0;
struct sigaction before_later{};
struct sigaction before_last{};

void call(const struct sigaction& action, int number, siginfo_t* information, void* context) {
  if ((action.sa_flags & SA_SIGINFO) != 0) return action.sa_sigaction(number, information, context);
  action.sa_handler(number);
}

void like_python(int) { ++called_python; }

void like_another_python(int) { ++called_python; }

void later(int number, siginfo_t* information, void* context) {
  if (++called_later < 1000) call(before_later, number, information, context);
}

void last(int number, siginfo_t* information, void* context) {
  if (++called_last < 1000) call(before_last, number, information, context);
}

void install(void (*handler)(int, siginfo_t*, void*), struct sigaction* before) {
  struct sigaction action{};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGINT, &action, before);
}

std::array<int, 3> counts_of_an_interrupt() {
  called_python = called_later = called_last = 0;
  std::raise(SIGINT);
  return {called_python, called_later, called_last};
}

}  // namespace

TEST(a_handler_that_calls_its_predecessor_is_called_once) {
  struct sigaction usual{};
  struct sigaction python{};
  python.sa_handler = like_python;
  sigaction(SIGINT, &python, &usual);
  Interrupts::watch();
  CHECK((counts_of_an_interrupt() == std::array{1, 0, 0}));
  const auto latest = Interrupts::latest();
  CHECK(latest && latest->age >= 0ns && latest->age < 60s && latest->turn == Activity::turn_of_main());
  {
    const Activity call({.label = &kLabel});
    CHECK((counts_of_an_interrupt() == std::array{1, 0, 0}));
    CHECK(Interrupts::latest()->turn == Activity::turn_of_main());
    CHECK(Activity::all().at(0).turn == Activity::turn_of_main());
  }
  CHECK(Interrupts::latest()->turn != Activity::turn_of_main());
  install(later, &before_later);
  for (int i = 0; i < 3; ++i) {
    Interrupts::watch();
    CHECK((counts_of_an_interrupt() == std::array{1, 1, 0}));
  }
  install(last, &before_last);
  Interrupts::watch();
  CHECK((counts_of_an_interrupt() == std::array{1, 1, 1}));
  sigaction(SIGINT, &python, nullptr);  // back to the first one, which calls no other
  Interrupts::watch();
  CHECK((counts_of_an_interrupt() == std::array{1, 0, 0}));
  sigaction(SIGINT, &usual, nullptr);
  Interrupts::watch();
  struct sigaction now{};
  sigaction(SIGINT, nullptr, &now);
  CHECK(now.sa_handler == usual.sa_handler);  // a program without a handler stays without one
}

TEST(interrupts_while_the_handler_changes) {
  struct sigaction usual{};
  struct sigaction python{};
  python.sa_handler = like_python;
  sigaction(SIGINT, &python, &usual);
  Interrupts::watch();
  struct sigaction other = python;
  other.sa_handler = like_another_python;
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    for (int i = 0; i < 200; ++i) {
      sigaction(SIGINT, &other, nullptr);
      Interrupts::watch();
      sigaction(SIGINT, &python, nullptr);
      Interrupts::watch();
    }
    done = true;
  });
  called_python = 0;
  do {
    std::raise(SIGINT);
  } while (!done);
  watcher.join();
  CHECK(called_python > 0);
  sigaction(SIGINT, &usual, nullptr);
}

TEST(a_desync_is_taken_once) {
  CHECK(Stop::take_desync().empty());
  Stop::request(ErrorCode::Desync, "out of step");
  CHECK(Stop::take_desync() == "out of step" && Stop::take_desync().empty());
  Stop::clear();
  Stop::request(ErrorCode::Desync, "out of step again");
  CHECK(ranks::failure(Stop::check).code == ErrorCode::Desync && Stop::take_desync().empty());
  Stop::clear();
  Stop::request(ErrorCode::NotInitialized, "forked");
  CHECK(Stop::take_desync().empty());
  Stop::clear();
}

TEST(calls_fail_when_communication_has_been_stopped) {
  ranks::together(2, [](Group& group) {
    float value = 1;
    Call call = call_of(Op::all_reduce);
    call.out = {&value, 1};
    ranks::run(group, call);
    CHECK(value == 2 && group.position().read().collectives == 1);
  });
  Stop::request(ErrorCode::Desync, "out of step");
  Stop::request(ErrorCode::Timeout, "the first one counts");
  ranks::together(2, [](Group& group) {
    const auto got = ranks::failure([&] { ranks::run(group, call_of(Op::barrier)); });
    CHECK(got.code == ErrorCode::Desync && check::has(got.text, "out of step", "barrier"));
  });
  Stop::clear();
  ranks::together(2, [](Group& group) { ranks::run(group, call_of(Op::barrier)); });
}
