// SPDX-License-Identifier: Apache-2.0
// Hierarchical algorithms: op x dtype x reduction x shape x size, run by the interpreter.
#include "algorithms/hierarchy.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "barriers.h"
#include "base/error.h"
#include "base/ops.h"
#include "check.h"
#include "interpreter.h"
#include "memory.h"

namespace {

using namespace mcr;
using memory::Ranks;
using memory::Setting;
using Shape = std::vector<std::vector<int>>;

const std::vector<Shape> kShapes = {
    {{0, 1}, {2, 3}},                  // 2 x 2
    {{0, 2}, {1, 3}},                  // the hosts in turn
    {{3, 1}, {0, 2}},                  // in no order
    {{0, 1, 2}, {3, 4, 5}},            // 2 x 3
    {{0, 1}, {2, 3}, {4, 5}},          // 3 x 2
    {{0, 1}, {2, 3}, {4, 5}, {6, 7}},  // 4 x 2
    {{0, 1}, {2}},                     // 2 + 1
    {{1}, {0, 2}},                     // 1 + 2, not in order
    {{0, 1, 2}, {3}},                  // 3 + 1
    {{4, 1, 2}, {0, 5}, {3}},          // 3 + 2 + 1
};
constexpr int64_t kCounts[] = {1, 7, 64, 200};
constexpr int64_t kLarge[] = {4096, 6'001};  // split over the ranks of a line, with and without a rest

int ranks_of(const Shape& shape) {
  std::size_t size = 0;
  for (const auto& line : shape) size += line.size();
  return static_cast<int>(size);
}

// Several calls in flight, one after the other on every rank, all on the same communicators.
bool agree(const std::vector<Setting>& settings, const Lines& lines, uint32_t seed) {
  std::vector<Ranks> want, got;
  std::vector<Schedule> schedules(static_cast<std::size_t>(lines.size()));
  for (const auto& setting : settings) {
    ++seed;
    want.emplace_back(setting, seed);
    got.emplace_back(setting, seed);
    interpreter::perform(want.back().calls);
  }
  for (auto& one : got) {
    for (int rank = 0; rank < lines.size(); ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      CHECK(has_hierarchy(one.calls[index]));
      hierarchy(one.calls[index], rank, lines, schedules[index]);
    }
  }
  for (const auto& schedule : schedules) {
    for (const auto& task : schedule.tasks()) {
      if (task.kind == Task::Kind::Issue) CHECK(task.late == (task.part != Lines::kFirst));
    }
  }
  const auto problem = interpreter::run(
      schedules, seed, [&](int rank, uint8_t part) { return lines.members(rank, static_cast<Lines::Part>(part)); });
  if (!problem.empty()) check::failed("schedule", 0, settings.front().text() + ": " + problem);
  return problem.empty() && want == got;
}

// The interpreter folds in the order of ranks, a hierarchy in that of lines: the values are exact in any order.
void check_values(Op op, DType dtype, RedOp red, bool large) {
  static uint32_t seed = 0;
  for (const auto& shape : kShapes) {
    const Lines lines(shape);
    const int size = ranks_of(shape);
    const std::vector<int64_t> counts = large ? std::vector<int64_t>(std::begin(kLarge), std::end(kLarge))
                                              : std::vector<int64_t>(std::begin(kCounts), std::end(kCounts));
    for (const int64_t count : counts) {
      for (int root = 0; root < (row(op).is(kRooted) ? size : 1); ++root) {
        const Setting setting{op, dtype, red, size, count, root, false, row(op).is(kReduces)};
        if (!agree({setting}, lines, seed += 10)) check::failed("hierarchy", 0, setting.text());
      }
    }
  }
}

template <class Check>  // check(op)
void each_operation(const Check& check) {
  for (std::size_t i = 0; i < kOps.size(); ++i) {
    const auto op = static_cast<Op>(i);
    if (!row(op).is(kPeer)) check(op);
  }
}

}  // namespace

TEST(hierarchical_operations_mean_what_they_say) {
  each_operation([](Op op) {
    for (std::size_t d = 0; d < kDTypes.size(); ++d) {
      const auto dtype = static_cast<DType>(d);
      if (!row(op).is(kReduces)) {
        check_values(op, dtype, RedOp::SUM, false);
        continue;
      }
      for (std::size_t r = 0; r < kReductions.size(); ++r) {
        const auto red = static_cast<RedOp>(r);
        Call call;
        call.op = op, call.dtype = dtype, call.red = red;
        if (has_hierarchy(call) && defined(dtype, red)) check_values(op, dtype, red, false);
      }
    }
  });
}

TEST(large_messages_are_split) {
  each_operation([](Op op) { check_values(op, DType::Long, RedOp::SUM, true); });
}

TEST(very_large_messages_pass_in_chunks) {
  const Lines lines({{0, 1}, {2, 3}});
  for (const auto op : {Op::all_reduce, Op::broadcast, Op::reduce}) {
    const Setting setting{op, DType::Long, RedOp::SUM, 4, (9 << 17) + 1, op == Op::all_reduce ? 0 : 3, false};
    CHECK(agree({setting}, lines, 5));
  }
}

// A rank that has no part in the first phase of a call must not overtake the ranks that do.
TEST(calls_in_flight_keep_their_order) {
  uint32_t seed = 1000;
  for (const auto& shape : kShapes) {
    const Lines lines(shape);
    const int size = ranks_of(shape);
    for (int turn = 0; turn < 40; ++turn) {
      std::vector<Setting> settings;
      each_operation([&](Op op) {
        settings.push_back({op, DType::Int, RedOp::SUM, size, turn % 2 == 0 ? 9 : 5000,
                            row(op).is(kRooted) ? (turn + static_cast<int>(op)) % size : 0, false});
      });
      std::rotate(settings.begin(), settings.begin() + turn % static_cast<int>(settings.size()), settings.end());
      CHECK(agree(settings, lines, seed += 100));
    }
  }
}

TEST(no_rank_leaves_a_barrier_before_all_have_come) {
  CostModel model;
  model.add({.kind = Task::Kind::Issue, .op = Op::barrier, .name = "x"}, {.alpha = 1});
  Call barrier;
  barrier.op = Op::barrier;
  for (const auto& shape : kShapes) {
    const Lines lines(shape);
    std::vector<Schedule> schedules(static_cast<std::size_t>(lines.size()));
    World world{{}, true};
    std::vector<Job> jobs;
    for (int rank = 0; rank < lines.size(); ++rank) {
      auto& schedule = schedules[static_cast<std::size_t>(rank)];
      hierarchy(barrier, rank, lines, schedule);
      Job job{&schedule, rank};
      for (const auto part : {Lines::kFirst, Lines::kOuter, Lines::kLast}) {
        const auto members = lines.members(rank, part);
        const auto found = std::ranges::find(world.groups, members);
        job.parts.push_back({"x", static_cast<uint32_t>(found - world.groups.begin())});
        if (found == world.groups.end()) world.groups.push_back(members);
      }
      jobs.push_back(job);
    }
    barriers::check_waits(jobs, model, world);
  }
}

// A chunk for each 4 MiB, at most 8, and the rest.
TEST(chunks_have_a_size_and_a_number) {
  const Lines lines({{0, 1}, {2, 3}});
  std::vector<int64_t> data(1);
  for (const auto& [count, chunks] : {std::pair{2047, 0}, {2048, 1}, {1 << 20, 2}, {3 << 19, 3}, {1 << 24, 8}}) {
    Call call;
    call.op = Op::reduce, call.dtype = DType::Long;
    call.out = {data.data(), count};
    Schedule schedule;
    hierarchy(call, 1, lines, schedule);
    const auto outer = std::ranges::count_if(schedule.tasks(), [](const Task& task) {
      return task.kind == Task::Kind::Issue && task.part == Lines::kOuter;
    });
    CHECK(outer == chunks);  // below 16 KiB the leader alone sends, which is rank 0
  }
}

TEST(a_split_sends_a_share_over_the_outer_links) {
  const Lines lines({{0, 1}, {2, 3}});
  std::vector<int64_t> data(100'000);
  Call call;
  call.op = Op::all_reduce, call.dtype = DType::Long;
  call.out = {data.data(), 100'000};
  Schedule schedule;
  hierarchy(call, 1, lines, schedule);
  int64_t outer = 0;
  for (const auto& task : schedule.tasks()) {
    if (task.kind == Task::Kind::Issue && task.part == Lines::kOuter) outer += task.call.out.count;
  }
  CHECK(outer == 50'000);
}

// It may be read-only, such as a file that is mapped into memory.
TEST(a_broadcast_does_not_write_to_the_data_of_its_root) {
  for (const auto& shape : kShapes) {
    const Lines lines(shape);
    for (const int64_t count : {kCounts[0], kLarge[1]}) {
      for (int root = 0; root < lines.size(); ++root) {
        std::vector<int64_t> data(static_cast<std::size_t>(count));
        Call call;
        call.op = Op::broadcast, call.dtype = DType::Long, call.root = root;
        call.out = {data.data(), count};
        Schedule schedule;
        hierarchy(call, root, lines, schedule);
        for (const auto& task : schedule.tasks()) {
          const auto from = reinterpret_cast<std::uintptr_t>(data.data());
          const auto to = reinterpret_cast<std::uintptr_t>(task.call.out.data);
          if (to < from || to >= from + data.size() * sizeof(int64_t)) continue;
          CHECK(task.kind == Task::Kind::Issue);
          CHECK(task.call.op == Op::broadcast);
          const auto members = lines.members(root, static_cast<Lines::Part>(task.part));
          CHECK(members[static_cast<std::size_t>(task.call.root)] == root);
        }
      }
    }
  }
}

TEST(what_has_no_form) {
  Call call;
  call.op = Op::all_reduce, call.dtype = DType::Float;
  CHECK(has_hierarchy(call));
  for (const auto red : {RedOp::AVG, RedOp::PREMUL_SUM}) {
    call.red = red;
    CHECK(!has_hierarchy(call));
  }
  call.op = Op::all_to_all;
  CHECK(has_hierarchy(call));
  call.vectored = true;
  CHECK(!has_hierarchy(call));
  call.vectored = false;
  call.op = Op::send;
  CHECK(!has_hierarchy(call));
}

TEST(wrong_lines_are_refused) {
  for (const auto& [shape, text] : std::vector<std::pair<Shape, std::string>>{{{{0, 1}}, "two or more"},
                                                                              {{{0}, {1}}, "at most 1"},
                                                                              {{{0, 1}, {1}}, "got 1"},
                                                                              {{{0, 1}, {3}}, "got 3"},
                                                                              {{{0, 1}, {}}, "none in line 1"}}) {
    std::string got;
    try {
      const Lines lines(shape);
    } catch (const Error& error) {
      got = error.what();
    }
    CHECK(check::has(got, text));
  }
}
