// SPDX-License-Identifier: Apache-2.0
// Calls on the streams of a device, simulated: what waits for what, and what lives how long.
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "doubling.h"
#include "engine/stream_call.h"
#include "observe/recorder.h"
#include "passes/log.h"

namespace {

using namespace doubling;

// Later work of the current stream that waits until the host goes on, which must not wait for the stream before.
class Held {
 public:
  explicit Held(std::function<void()> work) {
    simulated::enqueue(simulated::current(), [gone_on = host_.get_future().share(), work = std::move(work)] {
      CHECK(gone_on.wait_for(60s) == std::future_status::ready);  // else the host waits
      work();
    });
  }
  void go_on() { host_.set_value(); }

 private:
  std::promise<void> host_;
};

}  // namespace

TEST(a_blocking_call_is_part_of_the_current_stream) {
  Fixture fixture;
  std::vector<float> values(8, 1);
  const int before = simulated::events();
  Held held([&] { values.assign(8, 3); });
  ranks::run(fixture.group(), reduction(values));
  held.go_on();
  CHECK(simulated::events() == before);
  CHECK(fixture.script.streams.at(0) == simulated::current());
  simulated::finish(simulated::current());
  CHECK(values == std::vector<float>(8, 6));
}

TEST(an_asynchronous_call_comes_behind_the_callers_stream_and_the_waiting_stream_behind_it) {
  Fixture fixture;
  std::vector<float> values(8, 1);
  float seen = 0;
  Held held([&] { values.assign(8, 3); });
  const auto work = ranks::start(fixture.group(), reduction(values));
  CHECK(!work->poll());
  CHECK(!(fixture.script.streams.at(0) == simulated::current()));
  wait(*work, 10s, nullptr);
  held.go_on();
  simulated::enqueue(simulated::current(), [&] { seen = values[7]; });
  simulated::finish(simulated::current());
  CHECK(seen == 6);
  while (!work->poll()) std::this_thread::yield();  // false while the progress thread polls it
  CHECK(!work->failed());
}

TEST(another_librarys_stream_waits_too) {
  Fixture fixture;
  std::vector<float> values(8, 1);
  float seen = 0;
  const Stream external = DeviceRuntime::of(DeviceType::CUDA).make_stream({DeviceType::CUDA, 0}, false);
  std::shared_ptr<Work> work;
  {
    const StreamGuard guard(external);
    slowly([&] { values.assign(8, 3); });
    work = ranks::start(fixture.group(), reduction(values));
    work->set_external_stream();
  }
  wait(*work, 10s, nullptr);
  simulated::enqueue(external, [&] { seen = values[7]; });
  simulated::finish(external);
  CHECK(seen == 6);
  simulated::finish(simulated::current());
}

TEST(two_events_per_asynchronous_call_and_the_pool_gives_them_again) {
  Fixture fixture;
  std::vector<float> values(8, 1);
  const int before = simulated::events();
  for (int i = 0; i < 4; ++i) {
    const auto work = ranks::start(fixture.group(), reduction(values));
    wait(*work, 10s, nullptr);
  }
  CHECK(simulated::events() == before + 8);
  simulated::finish(simulated::current());
}

TEST(what_a_call_uses_lives_until_the_device_is_past_it) {
  Fixture fixture;
  std::vector<float> values(8, 1);
  std::weak_ptr<int> tensors;
  const auto start_with = [&](void (*release)(void*)) {
    auto kept = std::make_shared<int>(1);
    tensors = kept;
    Extras extras;
    extras.keeper = &kept;
    extras.keep = [](void* keeper) -> std::shared_ptr<void> { return *static_cast<std::shared_ptr<int>*>(keeper); };
    extras.release = release;
    Call call = reduction(values);
    slowly([] {});
    return start(fixture.group(), nullptr, call, extras);
  };
  auto work = start_with(nullptr);
  CHECK(!tensors.expired());
  work = nullptr;  // no thread waits
  CHECK(!tensors.expired());
  simulated::finish(fixture.script.streams.at(0));
  for (int i = 0; i < 5000 && !tensors.expired(); ++i) std::this_thread::sleep_for(1ms);
  CHECK(tensors.expired());

  // The stream that has allocated them waits: its own order protects them from here on.
  static std::atomic<int> released{0};
  released = 0;
  work = start_with([](void*) { ++released; });
  CHECK(released == 0);
  wait(*work, 10s, nullptr);
  wait(*work, 10s, nullptr);
  CHECK(released == 1);
  // Another stream protects nothing.
  work = start_with([](void*) { ++released; });
  {
    const StreamGuard other(DeviceRuntime::of(DeviceType::CUDA).make_stream({DeviceType::CUDA, 0}, false));
    wait(*work, 10s, nullptr);
  }
  CHECK(released == 1);
  simulated::finish(fixture.script.streams.back());
}

TEST(small_collectives_take_the_lanes_in_turn) {
  Fixture fixture;
  fixture.script.lanes = 3;
  std::vector<float> small(8, 1), large(1 << 20, 1);
  const auto go = [&](std::vector<float>& values, bool asynchronous) {
    if (!asynchronous) return static_cast<void>(ranks::run(fixture.group(), reduction(values)));
    wait(*ranks::start(fixture.group(), reduction(values)), 10s, nullptr);
  };
  // Ranks may differ in which calls are blocking, so that must not change the turn.
  go(small, true);
  go(small, false);
  go(large, true);
  go(small, true);
  go(small, true);
  CHECK((fixture.script.indices == std::vector<int>{0, 1, 0, 2, 0}));
  simulated::finish(simulated::current());
}

TEST(one_launch_order_where_the_library_keeps_none) {
  Fixture first, second;
  first.script.ordered = second.script.ordered = false;
  std::vector<float> a(8, 1), b(8, 1);
  slowly([] {});
  const auto slow = ranks::start(first.group(), reduction(a));
  std::atomic<bool> was_first{false};
  {
    // Nothing but the order of launches makes this stream wait for the other.
    const StreamGuard other(DeviceRuntime::of(DeviceType::CUDA).make_stream({DeviceType::CUDA, 0}, false));
    const auto quick = ranks::start(second.group(), reduction(b));
    simulated::finish(second.script.streams.at(0));
    was_first = slow->poll();
    wait(*quick, 10s, nullptr);
    simulated::finish(simulated::current());
  }
  CHECK(was_first);
}

TEST(a_batch_starts_at_its_end) {
  Fixture fixture(2);
  std::vector<float> values(8, 1);
  Call call = reduction(values);
  call.op = Op::send;
  call.root = 1;
  std::vector<std::shared_ptr<Work>> works;
  begin_batch();
  for (int i = 0; i < 3; ++i) works.push_back(ranks::start(fixture.group(), call));
  CHECK(fixture.script.order == "(sss" && !works[0]->poll() && works[0]->point() == nullptr);
  end_batch();
  CHECK(fixture.script.order == "(sss)");
  for (const auto& work : works) wait(*work, 10s, nullptr);
  end_batch();
  CHECK(fixture.script.order == "(sss)");
  simulated::finish(simulated::current());
}

TEST(the_end_of_a_thread_ends_its_batch) {
  Fixture fixture(2);
  std::vector<float> values(8, 1);
  Call call = reduction(values);
  call.op = Op::send;
  call.root = 1;
  std::thread([&] {
    begin_batch();
    ranks::start(fixture.group(), call);
    CHECK(!ranks::failure(begin_batch).text.empty());
  }).join();
  CHECK(fixture.script.order == "(s)");
}

TEST(calls_of_a_batch_come_behind_the_work_before_each_of_them) {
  Fixture fixture;
  std::vector<float> a(8, 1), b(8, 1), c(8, 1);
  const Stream other = DeviceRuntime::of(DeviceType::CUDA).make_stream({DeviceType::CUDA, 0}, false);
  std::vector<std::shared_ptr<Work>> works;
  begin_batch();
  works.push_back(ranks::start(fixture.group(), reduction(a)));
  slowly([&] { b.assign(8, 3); });
  works.push_back(ranks::start(fixture.group(), reduction(b)));
  {
    const StreamGuard guard(other);
    slowly([&] { c.assign(8, 5); });
    works.push_back(ranks::start(fixture.group(), reduction(c)));
  }
  end_batch();
  for (const auto& work : works) wait(*work, 10s, nullptr);
  simulated::finish(simulated::current());
  CHECK(a == std::vector<float>(8, 2) && b == std::vector<float>(8, 6) && c == std::vector<float>(8, 10));
}

TEST(a_blocking_call_in_a_batch_is_refused) {
  Fixture fixture;
  std::vector<float> values(8, 1);
  begin_batch();
  const auto work = ranks::start(fixture.group(), reduction(values));
  const auto got = ranks::failure([&] { ranks::run(fixture.group(), reduction(values)); });
  CHECK(got.code == ErrorCode::InvalidArgument && check::has(got.text, "fake.all_reduce", "got a blocking one"));
  end_batch();
  wait(*work, 10s, nullptr);
  simulated::finish(simulated::current());
}

TEST(works_of_a_batch_that_did_not_start_fail) {
  Fixture fixture;
  fixture.script.starts = false;
  std::vector<float> values(8, 1);
  begin_batch();
  const auto work = ranks::start(fixture.group(), reduction(values));
  CHECK(ranks::failure([&] { end_batch(); }).text == "nothing was started");
  const auto got = ranks::failure([&] { wait(*work, 10s, nullptr); });
  CHECK(got.code == ErrorCode::Backend && check::has(got.text, "fake.all_reduce", ": nothing was started"));
  while (!work->finished()) work->poll();
  CHECK(work->failed());
}

TEST(the_callers_stream_waits_for_the_copies_of_a_call_that_fails) {
  for (const bool batched : {false, true}) {
    Fixture fixture;
    fixture.script.refuses = true;
    std::vector<float> values(8, 1);
    Call call = reduction(values);
    std::atomic<bool> copied{false};
    bool seen = false;
    Extras extras;
    extras.before.push_back([&](const Stream& lane) {
      simulated::enqueue(lane, [&] {
        std::this_thread::sleep_for(kSlow);
        copied = true;
      });
    });
    if (batched) begin_batch();
    const auto got = ranks::failure([&] { start(fixture.group(), nullptr, call, extras); });
    CHECK(got.code == ErrorCode::Backend && check::has(got.text, "fake.all_reduce", "refused"));
    simulated::enqueue(simulated::current(), [&] { seen = copied; });
    if (batched) end_batch();
    simulated::finish(simulated::current());
    CHECK(seen);
    while (!copied) std::this_thread::sleep_for(1ms);
  }
}

TEST(groups_of_a_backend_have_streams_of_their_own) {
  Fixture fixture;
  fixture.script.lanes = 2;
  Group other(ranks::spec(1, 0));
  other.connect(fixture.alone.backend(), 0);
  std::vector<float> values(8, 1);
  for (auto* group : {&fixture.group(), &other, &fixture.group()}) {
    const auto work = ranks::start(*group, reduction(values));
    wait(*work, 10s, nullptr);
  }
  simulated::finish(simulated::current());
  CHECK(!(fixture.script.streams[0] == fixture.script.streams[1]));  // an operation of one may wait for the other's
  CHECK(values == std::vector<float>(8, 8));
  other.close();
}

TEST(a_blocking_barrier_blocks_the_host) {
  Fixture fixture;
  Call call;
  call.op = Op::barrier;
  ranks::run(fixture.group(), call);
  CHECK(fixture.script.order == "b");
}

TEST(a_blocking_barrier_ends_with_its_group) {
  Fixture fixture;
  fixture.script.stuck = true;
  const auto used = fixture.group().candidates().front().communicator;  // the device still uses it after the call
  std::thread closing([&] {
    for (bool issued = false; !issued; std::this_thread::sleep_for(1ms)) {
      const std::lock_guard lock(fixture.script.mutex);
      issued = !fixture.script.streams.empty();
    }
    fixture.group().close();
  });
  Call call;
  call.op = Op::barrier;
  const auto got = ranks::failure([&] { ranks::run(fixture.group(), call); });
  closing.join();
  CHECK(got.code == ErrorCode::NotInitialized && check::has(got.text, "fake.barrier", "has been destroyed"));
  CHECK(!fixture.script.aborted);
  fixture.script.stuck = false;
  simulated::finish(simulated::current());
}

TEST(lists_are_copied_on_the_device) {
  Fixture fixture;
  std::vector<float> in(4, 0), a(4, 0);
  Extras extras;
  extras.out_blocks = {{a.data(), 4}};
  Call call = reduction(in);
  call.op = Op::all_gather;
  call.in = ranks::buffer(in);
  call.out = {};
  slowly([&] { in.assign(4, 7); });
  run(fixture.group(), nullptr, call, extras, nullptr);
  simulated::finish(simulated::current());
  CHECK(a == std::vector<float>(4, 7));
}

TEST(an_input_inside_the_output_is_copied_unless_the_library_knows_it) {
  for (const bool known : {false, true}) {
    Fixture fixture;
    fixture.script.in_place = known;
    std::vector<float> out(4, 5);
    Call call = reduction(out);
    call.op = Op::all_gather;
    call.in = call.out;
    Extras extras;
    run(fixture.group(), nullptr, call, extras, nullptr);
    CHECK(extras.before.size() == (known ? 0 : 1));
    simulated::finish(simulated::current());
    CHECK(out == std::vector<float>(4, 5));
  }
}

TEST(the_librarys_failure_reaches_the_work) {
  Fixture fixture;
  fixture.script.stuck = true;
  std::vector<float> values(8, 1);
  const auto work = ranks::start(fixture.group(), reduction(values));
  CHECK(!work->poll());
  fixture.script.broken = true;
  while (!work->poll()) std::this_thread::yield();
  const auto got = ranks::failure([&] { wait(*work, 10s, nullptr); });
  CHECK(got.code == ErrorCode::Backend && check::has(got.text, "fake.all_reduce", "the network is gone"));
  CHECK(!work->finished());  // the device still uses the memory
  const std::weak_ptr<Communicator> used = fixture.group().candidates().front().communicator;
  fixture.group().close();
  fixture.script.aborted = true;
  simulated::finish(fixture.script.streams.at(0));
  while (!work->finished() || !used.expired()) work->poll();
}

TEST(time_limits_abort) {
  Fixture fixture;
  fixture.script.stuck = true;
  std::vector<float> values(8, 1);
  Call call = reduction(values);
  call.timeout = 20ms;
  const auto work = ranks::start(fixture.group(), call);
  while (!work->poll()) std::this_thread::yield();
  const auto got = ranks::failure([&] { work->rethrow(); });
  CHECK(got.code == ErrorCode::Timeout && check::has(got.text, "20 ms", "aborted") && fixture.script.aborted);
  simulated::finish(fixture.script.streams.at(0));
}

TEST(a_graph_records_calls_whose_events_are_never_queried) {
  Fixture fixture;
  std::vector<float> values(8, 1);
  simulated::set_capturing(true);
  const auto work = ranks::start(fixture.group(), reduction(values));
  simulated::set_capturing(false);
  CHECK(work->completed() && work->point() != nullptr);
  wait(*work, 10s, nullptr);  // the current stream comes behind it in the graph
  float seen = 0;
  simulated::enqueue(simulated::current(), [&] { seen = values[0]; });
  simulated::finish(simulated::current());
  CHECK(seen == 2);
}

TEST(wrong_devices_are_refused) {
  Fixture fixture;
  std::vector<float> values(8, 1);
  Call call = reduction(values);
  call.device.index = 1;
  auto got = ranks::failure([&] { ranks::run(fixture.group(), call); });
  CHECK(got.code == ErrorCode::InvalidArgument && check::has(got.text, "cuda:0", "cuda:1"));
  call.device = {};
  got = ranks::failure([&] { ranks::run(fixture.group(), call); });
  CHECK(got.code == ErrorCode::Unsupported && check::has(got.text, "fake.all_reduce", "cpu"));
  CHECK(fixture.script.indices.empty());
}

TEST(the_log_has_the_devices_times) {
  Fixture fixture;
  auto& recorder = Recorder::instance();
  const auto before = recorder.made();
  fixture.group().set_passes({std::make_shared<Log>(fixture.group(), Log::Ops().set())});
  std::vector<float> a(8, 1), b(8, 1);
  const auto issued = Recorder::now();
  Held held([] { std::this_thread::sleep_for(kSlow); });
  ranks::run(fixture.group(), reduction(a));
  const auto work = ranks::start(fixture.group(), reduction(b));
  auto readings = recorder.read(before + 1);
  CHECK(readings.size() == 2 && readings[0].record.state == CallState::Started && readings[0].record.end == 0);
  wait(*work, 10s, nullptr);
  const auto released = Recorder::now();
  held.go_on();
  simulated::finish(simulated::current());
  readings = recorder.read(before + 1);
  for (const auto& [record, in, out] : readings) {
    constexpr int64_t kMilli = 1000 * 1000;
    CHECK(record.state == CallState::Completed);
    // Behind the slow work, and as long as the device took for it. On a busy machine the device's clock, which is read
    // once, may be some milliseconds behind the host's.
    CHECK(record.start - released > 15 * kMilli && record.end - record.start > 4 * kMilli);
    CHECK(record.issue >= issued && record.issue <= released);
  }
  fixture.group().set_passes({});
}
