// SPDX-License-Identifier: Apache-2.0
// What is known of calls that do not end: positions, activities, operations that expire, the end of communication.
#include <atomic>
#include <thread>

#include "activity.h"
#include "check.h"
#include "dispatch.h"
#include "position.h"
#include "ranks.h"
#include "stop.h"

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
  CHECK(position->enter(call_of(Op::all_reduce), nullptr, false, 4) == 1);
  CHECK(position->enter(call_of(Op::send), nullptr, false, 4) == 1);
  CHECK(position->enter(call_of(Op::broadcast, 1), nullptr, true, 8) == 2);
  const auto reading = position->read();
  CHECK(reading.collectives == 2 && reading.messages == 1 && reading.newest.size() == 2);
  CHECK(reading.newest[1].op == Op::broadcast && reading.newest[1].root == 1 && reading.newest[1].asynchronous);
  CHECK(reading.newest[0].root == -1 && reading.newest[0].bytes == 4);
}

TEST(positions_keep_the_newest_and_a_digest_of_all) {
  const auto one = Position::make(kGroup, kLabel, {0, 1}, 0);
  const auto other = Position::make(kGroup, kLabel, {0, 1}, 1);
  other->enter(call_of(Op::barrier), nullptr, false, 0);
  one->enter(call_of(Op::all_reduce), nullptr, false, 4);
  for (int i = 0; i < 200; ++i) {
    one->enter(call_of(Op::all_reduce), nullptr, false, 4);
    other->enter(call_of(Op::all_reduce), nullptr, false, 4);
  }
  const auto mine = one->read();
  CHECK(mine.newest.size() == Position::kKept && mine.newest.front().seq == 202 - 64 && mine.newest.back().seq == 201);
  CHECK(mine.newest.back().history != other->read().newest.back().history);
  CHECK(one->read(200).newest.size() == 2);
  CHECK(Position::all().size() >= 2);
}

TEST(positions_of_groups_that_are_gone_are_not_listed) {
  const auto before = Position::all().size();
  Position::make(kGroup, kLabel, {0}, 0);
  CHECK(Position::all().size() == before);
}

TEST(positions_may_be_read_while_threads_enter) {
  const auto position = Position::make(kGroup, kLabel, {0, 1}, 0);
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      const auto reading = position->read();
      CHECK(reading.newest.empty() || reading.newest.back().seq == reading.collectives);
    }
  });
  std::vector<std::thread> writers;
  for (int i = 0; i < 3; ++i) {
    writers.emplace_back([&] {
      for (int k = 0; k < 5000; ++k) position->enter(call_of(Op::all_reduce), nullptr, false, k);
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
  for (int i = 0; i < 20000; ++i) {
    for (const auto& reading : Activity::all()) CHECK(reading.what.seq == reading.what.bytes);
  }
  stop = true;
  worker.join();
}

TEST(an_operation_that_expires_fails_and_calls_back) {
  static const std::string backend = "fake";
  auto work =
      std::make_shared<Work>(Work::Context{Op::all_reduce, &kLabel, &backend, nullptr, nullptr, 1s, 3, 4}, Plan{});
  std::vector<std::unique_ptr<Request>> requests;
  requests.push_back(std::make_unique<Never>());
  work->attach(std::move(requests));
  bool called = false;
  work->on_done([&] { called = true; });
  const auto now = std::chrono::steady_clock::now();
  CHECK(work->observed(now) == 0ns && work->observed(now + 2s) == 2s);
  CHECK(!work->poll() && work->expire(ErrorCode::Timeout, "too late") && called);
  CHECK(work->completed() && work->failed() && !work->settled() && !work->expire(ErrorCode::Timeout, "again"));
  const auto got = ranks::failure([&] { work->rethrow(); });
  CHECK(got.code == ErrorCode::Timeout && got.text == "too late");
}

TEST(a_time_limit_names_call_number_and_size) {
  static const std::string backend = "fake";
  Work work(Work::Context{Op::all_reduce, &kLabel, &backend, nullptr, nullptr, 1s, 3, 4}, Plan{});
  std::vector<std::unique_ptr<Request>> requests;
  requests.push_back(std::make_unique<Never>());
  work.attach(std::move(requests));
  try {
    wait(work, 10ms, nullptr);
    CHECK(false);
  } catch (const Error& error) {
    CHECK(check::has(error.what(), "fake.all_reduce", kLabel, "collective 3 of 4 bytes still running after 10 ms"));
    CHECK(error.subject() != nullptr && error.subject()->seq == 3 && error.subject()->label == kLabel);
  }
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
