// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse/fuse.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <random>
#include <thread>

#include "check.h"
#include "fusing.h"
#include "ranks.h"

using namespace fusing;

TEST(a_full_buffer_goes) {
  One one(limits(32));
  std::vector<Floats> data(6, Floats(4));  // 16 bytes each
  for (auto& floats : data) one.start(call(Op::all_reduce, floats));
  // Nothing waits. The progress thread may flush too, and then finds more calls than the full buffer's.
  while (one.pass->statistics().flushes < 2) std::this_thread::yield();
  CHECK(one.finish() && one.log.calls.empty());
  for (const auto& fused : one.fused.calls) CHECK(fused.out.count <= 8);
  const auto seen = one.pass->statistics();
  CHECK(seen.calls == 6 && seen.flushes == static_cast<int64_t>(one.fused.calls.size()) && seen.bytes == 96);
}

TEST(a_buffer_never_holds_more_than_its_size) {
  One one(limits(40));
  std::vector<Floats> data{Floats(6), Floats(6), Floats(3)};  // 24, 24, 12 bytes
  for (auto& floats : data) one.start(call(Op::all_reduce, floats));
  CHECK(one.finish());
  int64_t sum = 0;
  for (const auto& fused : one.fused.calls) {
    CHECK(fused.out.count <= 10);
    sum += fused.out.count;
  }
  CHECK(sum == 15);
}

TEST(a_flush_needs_no_memory_for_a_whole_buffer_that_is_large) {
  One one(limits(int64_t{1} << 50));
  std::vector<Floats> data{Floats(6), Floats(3)};
  for (auto& floats : data) one.start(call(Op::all_reduce, floats));
  CHECK(one.finish() && one.fused.calls.size() == 1 && one.fused.calls.front().out.count == 9);
  for (const auto& work : one.works) CHECK(!work->failed());
}

TEST(the_least_priority_goes_first) {
  One one(limits(1000));
  std::vector<Floats> data{Floats(1), Floats(2), Floats(4), Floats(8)};
  const int32_t priorities[] = {5, -1, 5, 0};
  for (std::size_t i = 0; i < data.size(); ++i) {
    auto held = call(Op::all_reduce, data[i]);
    held.priority = priorities[i];
    one.start(held);
  }
  CHECK(one.finish() && one.fused.calls.size() == 3);
  CHECK(one.fused.calls[0].out.count == 2 && one.fused.calls[1].out.count == 8 && one.fused.calls[2].out.count == 5);
}

TEST(a_wait_lets_go_what_is_held) {
  One one(limits(1000));
  Floats sum(4), other(4), copy(4);
  const auto first = one.start(call(Op::all_reduce, sum));
  one.start(call(Op::broadcast, copy));
  const auto third = one.start(call(Op::all_reduce, other));
  CHECK(one.fused.calls.empty() && !first->poll() && !third->poll());
  CHECK(first->wait_for(10s));
  CHECK(one.fused.calls.size() == 2 && one.finish());
  CHECK(one.fused.calls[0].out.count + one.fused.calls[1].out.count == 12);
}

TEST(time_lets_go_and_nothing_else_does) {
  One now(limits(1000, 0s)), later(limits(1000));
  Floats data(4);
  const auto soon = now.start(call(Op::all_reduce, data));
  const auto held = later.start(call(Op::all_reduce, data));
  while (!soon->poll()) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) CHECK(!held->poll());
  CHECK(later.fused.calls.empty() && held->wait_for(10s));
}

TEST(a_call_alone_is_not_copied) {
  One one(limits(1000));
  Floats data(4);
  CHECK(one.start(call(Op::all_reduce, data))->wait_for(10s));
  CHECK(one.fused.calls[0].out.data == data.data());
}

TEST(other_calls_go_on_at_once) {
  One one({64, kNever, 16});
  Floats data(4), large(5), more(8);
  ranks::run(one.alone.group(), call(Op::all_reduce, data));  // blocking
  one.start(call(Op::all_reduce, large));                     // too large
  one.start(call(Op::all_to_all, more, large = Floats(8)));   // another operation
  one.start(call(Op::reduce, data));
  const std::vector<int64_t> counts{4};
  Call vectored = call(Op::all_gather, data, more = Floats(4));
  vectored.vectored = true;
  vectored.out_counts = counts;
  one.start(vectored);
  for (const double factor : {2., 3.}) {  // which a buffer could not keep apart
    Call multiplied = call(Op::all_reduce, data);
    multiplied.red = RedOp::PREMUL_SUM;
    multiplied.factor = factor;
    one.start(multiplied);
  }
  CHECK(one.log.calls.size() == 7 && one.fused.calls.empty() && one.pass->statistics().calls == 0);
  CHECK(one.log.calls[5].factor == 2 && one.log.calls[6].factor == 3);
}

TEST(only_like_goes_with_like) {
  One one(limits(1000));
  Floats data(4);
  Call maximum = call(Op::all_reduce, data);
  maximum.red = RedOp::MAX;
  Call integers = call(Op::all_reduce, data);
  integers.dtype = DType::Int;
  for (const auto& each : {call(Op::all_reduce, data), maximum, integers, call(Op::broadcast, data)}) one.start(each);
  CHECK(one.finish() && one.fused.calls.size() == 4);
}

// A pass behind the fusion that uses the group from inside of a flush, and lets another thread do so.
class Nosy : public Pass {
 public:
  explicit Nosy(One& one) : one_(one) {}
  std::string_view name() const override { return "nosy"; }
  Outcome handle(Passage& passage, const Next& next) override {
    std::thread([this] { seen += static_cast<int>(one_.pass->statistics().calls); }).join();
    if (std::exchange(called_, true)) return next(passage);
    CHECK(ranks::start(one_.alone.group(), call(Op::all_reduce, data))->wait_for(10s));  // not held behind itself
    ranks::run(one_.alone.group(), call(Op::all_reduce, data));
    return next(passage);
  }
  int seen = 0;
  Floats data = Floats(4);

 private:
  One& one_;
  bool called_ = false;
};

TEST(no_lock_is_held_during_a_flush) {
  One one(limits(1000));
  const auto nosy = std::make_shared<Nosy>(one);
  one.shadow->group().set_passes({nosy});
  one.pass = fuse(one.alone.group(), {one.shadow, &one.shadow->group()}, limits(1000));
  Floats first(4);
  CHECK(one.start(call(Op::all_reduce, first))->wait_for(10s));
  CHECK(nosy->seen >= 1 && one.fused.calls.size() == 1 && one.log.calls.size() == 2);
  CHECK(one.log.blocking == 0);  // a thread of the core must not keep other threads from a library
}

TEST(calls_go_through_the_passes_behind_their_own) {
  One one(limits(1000));
  std::array<std::shared_ptr<Sees>, 2> behind = {std::make_shared<Sees>(), std::make_shared<Sees>()};
  std::vector<std::shared_ptr<Fuse>> passes;
  for (const auto& sees : behind) {
    one.shadow->group().set_passes({sees});
    passes.push_back(fuse(one.alone.group(), {one.shadow, &one.shadow->group()}, limits(1000)));
  }
  std::vector<Floats> data(5, Floats(4));
  for (std::size_t i = 0; i < data.size(); ++i) {
    one.alone.group().set_passes({passes[i % 2]});  // as a pass in front of the first one, which has held calls
    one.start(call(Op::all_reduce, data[i]));
  }
  CHECK(passes[1]->synchronize(10s) && one.finish() && behind[0]->calls == 1 && behind[1]->calls == 1);
  CHECK(one.fused.calls.size() == 2 && one.fused.calls[0].out.count == 12 && one.fused.calls[1].out.count == 8);
}

TEST(rounds_go_around_the_passes) {
  for (const int size : {2, 3}) {
    ranks::together(size, [&](Group& group, const Shadow& shadow) {
      const auto sees = std::make_shared<Sees>();
      shadow->set_passes({sees});
      const auto pass = fuse(group, shadow, limits(1000));
      Floats data(4, 1);
      CHECK(ranks::start(group, call(Op::all_reduce, data))->wait_for(60s));
      CHECK(data == Floats(4, static_cast<float>(size)) && sees->calls == 1);
    });
  }
}

TEST(rounds_and_buffers_have_the_longest_timeout_of_their_calls) {
  Counter::Log log, fused;
  ranks::Alone alone([&] { return std::make_unique<Counter>(log); }, 2, 0);
  auto shadow = std::make_shared<ranks::Alone>([&] { return std::make_unique<Counter>(fused); }, 2, 0);
  const auto pass = fuse(alone.group(), {shadow, &shadow->group()}, limits(1000));
  Floats data(4);
  std::vector<std::shared_ptr<Work>> works;
  for (const auto timeout : {70s, 90s, 80s}) {
    auto one = call(Op::all_reduce, data);
    one.timeout = timeout;
    works.push_back(ranks::start(alone.group(), one));
  }
  CHECK(works.front()->wait_for(10s) && fused.calls.size() == 2);  // a round, and a buffer
  for (const auto& each : fused.calls) CHECK(each.timeout == 90s);
}

TEST(a_blocking_call_first_sees_to_what_is_held) {
  One one(limits(1000));
  Floats held(4), data(4);
  one.start(call(Op::all_reduce, held));
  CHECK(Executor::any() && one.fused.calls.empty());
  ranks::run(one.alone.group(), call(Op::all_reduce, data));
  CHECK(one.fused.calls.size() == 1 && one.log.calls.size() == 1 && !Executor::any());
}

// Ranks of different speeds, with clocks that let buffers go at different calls in each of them.
TEST(a_round_is_waited_for_as_long_as_one_of_its_calls_is) {
  One one(limits(1000));
  std::vector<Floats> data(3, Floats(4));
  const auto first = one.start(call(Op::all_reduce, data[0])), second = one.start(call(Op::all_reduce, data[1]));
  CHECK(first->expire(ErrorCode::Timeout, "too late") && Executor::any());
  CHECK(second->expire(ErrorCode::Timeout, "too late") && !Executor::any() && one.fused.calls.empty());
  one.start(call(Op::all_reduce, data[2]));
  CHECK(Executor::any());
  CHECK(one.finish() && !Executor::any());
  CHECK(one.fused.calls.size() == 1 && one.fused.calls.front().out.count == 12 && !one.works.back()->failed());
}

// A group with two backends and the stripe over both.
class Several {
 public:
  explicit Several(int size = 1) : group(std::make_shared<Group>(ranks::spec(size, 0))) {
    connect(first_, "left", logs[0]);
    connect(second_, "right", logs[1]);
    connect_striped(*group, "left", "right");
  }
  std::shared_ptr<Work> start(const Call& call, const char* backend) const {
    return ranks::start(*group, call, group->find(backend));
  }
  std::array<Counter::Log, 2> logs;

 private:
  void connect(Registry::Entry& entry, const char* name, Counter::Log& log) const {
    entry.name = name;
    entry.backend = std::make_unique<ranks::MadeBackend>([&log] { return std::make_unique<Counter>(log); });
    group->connect(entry, 0);
  }
  Registry::Entry first_, second_;

 public:
  const std::shared_ptr<Group> group;
};

// Otherwise their flushes would have an order of their own on each rank.
TEST(backends_that_share_communicators_flush_together) {
  for (const auto hold : {std::chrono::nanoseconds(kNever), std::chrono::nanoseconds(0)}) {
    const auto shadow = std::make_shared<Several>();
    Several several;
    const std::map<std::string, FuseLimits> each = {
        {"left", limits(1000)}, {"right", limits(1000)}, {"stripe(left,right)", limits(1000, hold)}};
    const auto pass = std::make_shared<Fuse>(Shadow{shadow, shadow->group.get()}, each);
    several.group->set_passes({pass});
    std::vector<Floats> data(4, Floats(4));
    std::vector<std::shared_ptr<Work>> works;
    for (const char* backend : {"left", "right", "left", "stripe(left,right)"}) {
      works.push_back(several.start(call(Op::all_reduce, data[works.size()]), backend));
    }
    if (hold == kNever) CHECK(works[1]->wait_for(10s));
    for (const auto& work : works) {
      while (!work->poll()) std::this_thread::yield();
    }
    CHECK(shadow->logs[0].calls.size() == 2 && shadow->logs[1].calls.size() == 1);
    CHECK(shadow->logs[0].calls[0].out.count == 8 && shadow->logs[0].calls[1].out.count == 4);
    CHECK(pass->statistics().calls == 4 && pass->statistics().flushes == 3);
    several.group->set_passes({});
  }
}

TEST(a_call_joins_the_buffer_of_the_backend_that_is_best_for_a_full_one) {
  constexpr int64_t kFull = 1 << 20, kSmaller = kFull / 2;
  constexpr int kRanks = 4;
  const auto shadow = std::make_shared<Several>(kRanks);
  Tuning tuning;
  for (const auto op : {Op::broadcast, Op::all_reduce, Op::all_gather, Op::reduce_scatter}) {
    const auto types = row(op).is(kReduces) ? DTypeClass::Float : DTypeClass::Any;
    const auto costs = [&](const char* backend, int32_t smaller, int32_t full) {
      const CostCurve curve({{4, smaller << 16}, {kSmaller, smaller << 16}, {kFull, full << 16}});
      tuning.costs.push_back({{op, false, true, DeviceType::CPU, types}, backend, curve});
    };
    costs("left", 10, 30);
    costs("right", 20, 20);
  }
  shadow->group->tune(tuning);
  Several several(kRanks);
  const std::map<std::string, FuseLimits> each = {
      {"left", limits(kFull)}, {"right", limits(kFull)}, {"stripe(left,right)", limits(kFull)}};
  const auto pass = std::make_shared<Fuse>(Shadow{shadow, shadow->group.get()}, each);
  several.group->set_passes({pass});
  Floats one(4), all(4 * kRanks);
  for (const auto& made : {call(Op::broadcast, one), call(Op::all_reduce, one), call(Op::all_gather, one, all),
                           call(Op::reduce_scatter, all, one)}) {
    CHECK(ranks::start(*several.group, made)->wait_for(10s));
    const auto is_made = [&](const Call& fused) { return fused.dtype == DType::Float && fused.op == made.op; };
    CHECK(std::ranges::none_of(shadow->logs[0].calls, is_made) && std::ranges::any_of(shadow->logs[1].calls, is_made));
  }
  several.group->set_passes({});
}

// Calls that a pass in front of the first one holds come to it later.
TEST(passes_that_follow_each_other_flush_together) {
  ranks::together(2, [&](Group& group, const Shadow& shadow) {
    const auto first = fuse(group, shadow, limits(1000));
    Floats data(4, 1), other(4, 100);
    CHECK(ranks::start(group, call(Op::all_reduce, data))->wait_for(60s));
    const auto second = fuse(group, shadow, limits(1000));
    CHECK(second->statistics().calls == 0);
    std::vector<std::shared_ptr<Work>> works{ranks::start(group, call(Op::all_reduce, other))};
    group.set_passes({first});
    works.push_back(ranks::start(group, call(Op::all_reduce, data)));
    if (group.rank() == 1) std::swap(works[0], works[1]);
    for (const auto& work : works) CHECK(work->wait_for(60s) && !work->failed());
    CHECK(data == Floats(4, 4) && other == Floats(4, 200));
    CHECK(second->statistics().calls == 2 && second->statistics().flushes == 2);  // each with its own rest of the chain
  });
}

TEST(all_ranks_flush_the_same) {
  for (const int size : {2, 3}) {
    std::vector<FuseStatistics> seen(static_cast<std::size_t>(size));
    ranks::together(size, [&](Group& group, const Shadow& shadow) {
      const int rank = group.rank();
      const auto pass = fuse(group, shadow, limits(200, 50us));
      std::mt19937 random(static_cast<unsigned>(rank));
      constexpr int kCalls = 60;
      std::vector<Floats> sums, copies, parts, wholes, blocks, results;
      std::vector<std::shared_ptr<Work>> works;
      for (int i = 0; i < kCalls; ++i) {
        const auto n = static_cast<std::size_t>(1 + i % 5), all = n * static_cast<std::size_t>(size);
        for (auto* list : {&sums, &copies, &parts}) list->emplace_back(n, static_cast<float>(rank + i));
        wholes.emplace_back(all);
        blocks.emplace_back(all, static_cast<float>(rank + i));
        results.emplace_back(n);
      }
      for (std::size_t i = 0; i < kCalls; ++i) {
        works.push_back(ranks::start(group, call(Op::all_reduce, sums[i])));
        works.push_back(ranks::start(group, call(Op::broadcast, copies[i], 1)));
        works.push_back(ranks::start(group, call(Op::all_gather, parts[i], wholes[i])));
        works.push_back(ranks::start(group, call(Op::reduce_scatter, blocks[i], results[i])));
        if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      }
      std::shuffle(works.begin(), works.end(), random);
      for (const auto& work : works) CHECK(work->wait_for(60s) && !work->failed());
      const int ranks_sum = size * (size - 1) / 2;
      for (int i = 0; i < kCalls; ++i) {
        const auto at = static_cast<std::size_t>(i), n = sums[at].size();
        const auto sum = static_cast<float>(ranks_sum + size * i);
        CHECK(sums[at] == Floats(n, sum));
        CHECK(results[at] == Floats(n, sum));
        CHECK(copies[at] == Floats(n, static_cast<float>(1 + i)));
        for (std::size_t j = 0; j < wholes[at].size(); ++j) {
          CHECK(wholes[at][j] == static_cast<float>(static_cast<int>(j / n) + i));
        }
      }
      seen[static_cast<std::size_t>(rank)] = pass->statistics();
    });
    for (const auto& one : seen) {
      CHECK(one.calls == 240 && one.flushes < 240 && one.flushes == seen[0].flushes && one.digest == seen[0].digest);
    }
  }
}
