// SPDX-License-Identifier: Apache-2.0
// Tensors of a simulated device on a library of the host, by several ranks.
#include "engine/staging.h"

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "check.h"
#include "choose/decision.h"
#include "device/stream_pool.h"
#include "ranks.h"
#include "simulated.h"

namespace {

using namespace mcr;
using namespace std::chrono_literals;

constexpr int64_t kChunk = 64;  // bytes: 16 floats

std::vector<float> ramp(int64_t count, float first) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

Call on_device(Op op) {
  Call call;
  call.op = op;
  call.dtype = DType::Float;
  call.device = {DeviceType::CUDA, 0};
  return call;
}

void staged(int size, const std::function<void(Group&)>& body) {
  simulated::start();
  ranks::together(size, [&](Group& group, const std::shared_ptr<Group>& shadow) {
    const auto stage = std::make_shared<Stage>(shadow);
    group.set_stage(stage, shadow);
    group.set_staging(std::make_shared<Staging>(stage, kChunk));
    body(group);
    simulated::finish(simulated::current());
    CHECK(stage->synchronize(10s));
  });
}

// Takes device memory, and has MAX alone.
class Largest : public OpMethods<Largest> {
 public:
  explicit Largest(std::vector<void*>& got) : got_(got) {}
  bool supports(const Call& call) const override { return has(call.op) && call.red == RedOp::MAX; }
  void all_reduce(const Call& call, Lane&) { got_.push_back(call.out.data); }

 private:
  std::vector<void*>& got_;
};

}  // namespace

TEST(reductions_in_pieces) {
  for (const int size : {1, 2, 3}) {
    for (const int64_t count : {int64_t{1}, kChunk / 4, kChunk, 5 * kChunk + 3}) {
      staged(size, [&](Group& group) {
        auto values = ramp(count, 0);
        // The tensor is still being written when the call is made.
        simulated::enqueue(simulated::current(), [&] {
          std::this_thread::sleep_for(5ms);
          for (auto& value : values) value += static_cast<float>(group.rank());
        });
        Call call = on_device(Op::all_reduce);
        call.out = ranks::buffer(values);
        ranks::run(group, call);
        simulated::finish(simulated::current());
        const auto more = static_cast<float>(size * (size - 1) / 2);
        for (int64_t i = 0; i < count; ++i) {
          CHECK(values[static_cast<std::size_t>(i)] == static_cast<float>(i * size) + more);
        }
      });
    }
  }
}

TEST(the_callers_thread_goes_on) {
  staged(2, [](Group& group) {
    std::vector<std::vector<float>> values(3, std::vector<float>(100, 1));
    std::atomic<bool> open{false};
    simulated::enqueue(simulated::current(), [&] {
      while (!open) std::this_thread::sleep_for(1ms);
    });
    Call call = on_device(Op::all_reduce);
    std::vector<std::shared_ptr<Work>> works;
    for (auto& tensor : values) {
      call.out = ranks::buffer(tensor);
      works.push_back(ranks::start(group, call));  // else it never gets here
    }
    CHECK(!works[0]->poll() && works[0]->point() == nullptr);
    open = true;
    for (auto work = works.rbegin(); work != works.rend(); ++work) wait(**work, 30s, nullptr);
    float seen = 0;
    simulated::enqueue(simulated::current(), [&] { seen = values[0][99] + values[1][99] + values[2][99]; });
    simulated::finish(simulated::current());
    CHECK(seen == 6);
  });
}

TEST(a_timeout_says_that_an_earlier_call_comes_first) {
  staged(1, [](Group& group) {
    std::atomic<bool> open{false};
    simulated::enqueue(simulated::current(), [&] {
      while (!open) std::this_thread::sleep_for(1ms);
    });
    std::vector<float> first(4, 1), second(4, 1);
    Call call = on_device(Op::all_reduce);
    call.out = ranks::buffer(first);
    const auto earlier = ranks::start(group, call);
    call.out = ranks::buffer(second);
    const auto later = ranks::start(group, call);
    const auto text = [](Work& work) { return ranks::failure([&] { wait(work, 10ms, nullptr); }).text; };
    CHECK(check::has(text(*later), "timed out", "it is issued after an earlier call of its group"));
    const auto own = text(*earlier);
    CHECK(check::has(own, "timed out") && own.find("it is issued after") == std::string::npos);
    open = true;
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (!(earlier->finished() && later->finished()) && std::chrono::steady_clock::now() < end) {
      earlier->poll();
      later->poll();
    }
    CHECK(earlier->finished() && later->finished());
  });
}

TEST(roots_and_what_they_leave_alone) {
  staged(3, [](Group& group) {
    const bool root = group.rank() == 1;
    std::vector<float> values(40, static_cast<float>(group.rank() + 1));
    Call call = on_device(Op::broadcast);
    call.root = 1;
    call.out = ranks::buffer(values);
    ranks::run(group, call);
    simulated::finish(simulated::current());
    CHECK(values == std::vector<float>(40, 2));
    call.op = Op::reduce;
    ranks::run(group, call);
    simulated::finish(simulated::current());
    CHECK(values == std::vector<float>(40, root ? 6 : 2));
  });
}

TEST(blocks_with_gaps) {
  staged(3, [](Group& group) {
    const std::vector<int64_t> counts = {2, 0, 3}, displs = {4, 0, 0};
    const auto mine = static_cast<std::size_t>(group.rank());
    auto in = ramp(counts[mine], static_cast<float>(10 * group.rank()));
    std::vector<float> out(8, -1);
    Call call = on_device(Op::all_gather);
    call.vectored = true;
    call.in = ranks::buffer(in);
    call.out = ranks::buffer(out);
    call.out_counts = counts;
    call.out_displs = displs;
    ranks::run(group, call);
    simulated::finish(simulated::current());
    CHECK((out == std::vector<float>{20, 21, 22, -1, 0, 1, -1, -1}));
  });
}

TEST(lists_of_device_tensors) {
  staged(2, [](Group& group) {
    auto in = ramp(3, static_cast<float>(10 * group.rank()));
    std::vector<float> a(3), b(3);
    Extras extras;
    extras.out_blocks = {{a.data(), 3}, {b.data(), 3}};
    Call call = on_device(Op::all_gather);
    call.in = ranks::buffer(in);
    run(group, nullptr, call, extras, nullptr);
    simulated::finish(simulated::current());
    CHECK(a == ramp(3, 0) && b == ramp(3, 10));
  });
}

TEST(messages) {
  staged(2, [](Group& group) {
    auto values = ramp(50, static_cast<float>(100 * group.rank()));
    Call call = on_device(group.rank() == 0 ? Op::send : Op::recv);
    call.root = 1 - group.rank();
    call.tag = 3;
    call.out = ranks::buffer(values);
    const auto work = ranks::start(group, call);
    wait(*work, 30s, nullptr);
    CHECK(work->source() == (group.rank() == 1 ? 0 : -1));
    CHECK(ranks::run(group, call) == (group.rank() == 1 ? 0 : -1));
    simulated::finish(simulated::current());
    CHECK(values == ramp(50, 0));
  });
}

// Libraries match messages of one tag by their order.
TEST(messages_keep_their_order) {
  staged(2, [](Group& group) {
    std::vector<std::vector<float>> values;
    for (const float first : {0.0F, 100.0F, 200.0F}) values.push_back(ramp(50, group.rank() == 0 ? first : -1));
    std::vector<std::shared_ptr<Work>> works;
    for (auto& each : values) {
      Call call = on_device(group.rank() == 0 ? Op::send : Op::recv);
      call.root = 1 - group.rank();
      call.out = ranks::buffer(each);
      works.push_back(ranks::start(group, call));
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) wait(**work, 30s, nullptr);
    simulated::finish(simulated::current());
    for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == ramp(50, 100.0F * static_cast<float>(i)));
  });
}

TEST(a_library_that_takes_device_memory_gets_it_when_the_device_has_written_it) {
  for (const bool direct : {false, true}) {
    ranks::take_device_memory(direct);
    staged(2, [direct](Group& group) {
      const int before = simulated::pinned();
      std::vector<float> values(50, -1);
      const bool sends = group.rank() == 0;
      if (sends) {
        simulated::enqueue(simulated::current(), [&] {
          std::this_thread::sleep_for(20ms);
          std::iota(values.begin(), values.end(), 0.0F);
        });
      }
      Call call = on_device(sends ? Op::send : Op::recv);
      call.root = sends ? 1 : 0;
      call.out = ranks::buffer(values);
      ranks::run(group, call);
      simulated::finish(simulated::current());
      CHECK(values == ramp(50, 0));
      CHECK((simulated::pinned() == before) == direct);
    });
  }
  ranks::take_device_memory(false);
}

// SUM of bool is MAX.
TEST(a_library_gets_device_memory_for_a_reduction_under_another_name) {
  simulated::start();
  std::vector<void*> got;
  const auto make = [&] { return std::make_unique<Largest>(got); };
  ranks::Alone alone(make);
  const auto shadow = std::make_shared<ranks::Alone>(make);
  const std::shared_ptr<Group> late(shadow, &shadow->group());
  const auto stage = std::make_shared<Stage>(late);
  alone.group().set_stage(stage, late);
  alone.group().set_staging(std::make_shared<Staging>(stage, kChunk));
  std::vector<uint8_t> values(8, 1);
  Call call = on_device(Op::all_reduce);
  call.dtype = DType::Bool;
  call.out = ranks::buffer(values);
  CHECK(Decision::of(*alone.group().candidates().front().communicator, call).native());
  const int before = simulated::pinned();
  const auto work = ranks::start(alone.group(), call);
  wait(*work, 30s, nullptr);
  simulated::finish(simulated::current());
  while (!work->finished()) work->poll();
  CHECK(got == std::vector<void*>{values.data()} && simulated::pinned() == before);
}

TEST(device_and_host_calls_of_one_group_in_any_mixture) {
  staged(2, [](Group& group) {
    std::vector<float> device(33, 1), other(20, 1), host(5, 1);
    Call first = on_device(Op::all_reduce);
    first.out = ranks::buffer(device);
    Call second = first;
    second.device = {};
    second.out = ranks::buffer(host);
    const auto work = ranks::start(group, first);
    ranks::run(group, second);
    first.out = ranks::buffer(other);
    const auto again = ranks::start(group, first);
    ranks::run(group, second);
    wait(*again, 30s, nullptr);
    wait(*work, 30s, nullptr);
    simulated::finish(simulated::current());
    CHECK(device == std::vector<float>(33, 2) && other == std::vector<float>(20, 2));
    CHECK(host == std::vector<float>(5, 4));
  });
}

TEST(a_failure_is_the_works_and_the_memory_stays) {
  staged(2, [](Group& group) {
    std::vector<float> values(group.rank() == 0 ? 4 : 8, 1);
    Call call = on_device(group.rank() == 0 ? Op::send : Op::recv);
    call.root = 1 - group.rank();
    call.out = ranks::buffer(values);
    const auto work = ranks::start(group, call);
    const auto got = ranks::failure([&] { wait(*work, 30s, nullptr); });
    if (group.rank() == 1) CHECK(check::has(got.text, "memory.recv", "expected 32 bytes, got 16"));
    while (!work->finished()) work->poll();
    // The group is as good as before.
    std::vector<float> one(1, 1);
    Call next = on_device(Op::all_reduce);
    next.out = ranks::buffer(one);
    ranks::run(group, next);
    simulated::finish(simulated::current());
    CHECK(one[0] == 2);
  });
}

TEST(the_error_of_a_blocking_calls_wait_names_it_once) {
  std::vector<float> sent(8, 1), received(8, 0);
  std::atomic<bool> late{false};
  staged(2, [&](Group& group) {
    const bool sends = group.rank() == 0;
    Call call = on_device(sends ? Op::send : Op::recv);
    call.root = 1 - group.rank();
    call.out = ranks::buffer(sends ? sent : received);
    if (sends) {
      while (!late) std::this_thread::sleep_for(1ms);
      ranks::run(group, call);
      return;
    }
    call.timeout = 20ms;
    const auto got = ranks::failure([&] { ranks::run(group, call); });
    CHECK(got.code == ErrorCode::Timeout && check::has(got.text, "memory.recv", "of 20 ms"));
    CHECK(got.text.find("memory.recv") == got.text.rfind("memory.recv"));
    late = true;
  });
  CHECK(received == sent);  // the operation has gone on
}

TEST(a_call_whose_last_copy_fails_ends) {
  staged(1, [](Group& group) {
    std::vector<float> values(4, 1);
    Call call = on_device(Op::all_reduce);
    call.out = ranks::buffer(values);
    Extras extras;
    extras.behind.push_back([](const Stream&) { throw Error(ErrorCode::Backend, "no memory for a copy"); });
    const auto work = start(group, nullptr, call, extras);
    const auto got = ranks::failure([&] { wait(*work, 30s, nullptr); });
    CHECK(check::has(got.text, "memory.all_reduce", "no memory for a copy"));
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (!work->finished() && std::chrono::steady_clock::now() < end) work->poll();
    CHECK(work->finished());
  });
}

TEST(without_staging_there_is_a_clear_error) {
  simulated::start();
  ranks::together(1, [](Group& group) {
    std::vector<float> values(4, 1);
    Call call = on_device(Op::all_reduce);
    call.out = ranks::buffer(values);
    const auto got = ranks::failure([&] { ranks::run(group, call); });
    CHECK(got.code == ErrorCode::Unsupported && check::has(got.text, "memory.all_reduce", "on cpu", "cuda"));
  });
}

TEST(an_error_of_a_closed_stage_names_the_call_once) {
  simulated::start();
  ranks::together(1, [](Group& group, const std::shared_ptr<Group>& shadow) {
    group.set_staging(std::make_shared<Staging>(std::make_shared<Stage>(shadow), kChunk));
    shadow->close();
    std::vector<float> values(4, 1);
    Call call = on_device(Op::all_reduce);
    call.out = ranks::buffer(values);
    const auto got = ranks::failure([&] { ranks::run(group, call); });
    CHECK(got.code == ErrorCode::NotInitialized && check::has(got.text, "memory.all_reduce", "has been destroyed"));
    CHECK(got.text.find("memory.all_reduce") == got.text.rfind("memory.all_reduce"));
  });
}

TEST(no_graphs_of_host_libraries) {
  staged(1, [](Group& group) {
    std::vector<float> values(4, 1);
    Call call = on_device(Op::all_reduce);
    call.out = ranks::buffer(values);
    simulated::set_capturing(true);
    const auto got = ranks::failure([&] { ranks::run(group, call); });
    simulated::set_capturing(false);
    CHECK(got.code == ErrorCode::Unsupported && check::has(got.text, "graph"));
  });
}

TEST(lanes_have_the_priority_that_was_preferred_last) {
  simulated::start();
  StreamPool pool;
  const Device device{DeviceType::CUDA, 0};
  const auto high_of = [&](int lane) {
    const int before = simulated::high_streams();
    pool.lane(device, lane);
    return simulated::high_streams() - before;
  };
  CHECK(high_of(0) == 0);
  StreamPool::prefer_high_priority(true);
  CHECK(high_of(1) == 1 && high_of(0) == 0);  // lanes that are there stay
  StreamPool::prefer_high_priority(false);
  CHECK(high_of(2) == 0);
}
