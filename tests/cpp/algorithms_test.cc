// SPDX-License-Identifier: Apache-2.0
// Algorithms against the meaning of the operations: op x dtype x reduction x ranks x sizes, run by the interpreter.
#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "algorithms/emulate.h"
#include "algorithms/fuse.h"
#include "algorithms/pieces.h"
#include "algorithms/stripe.h"
#include "barriers.h"
#include "base/error.h"
#include "base/ops.h"
#include "check.h"
#include "interpreter.h"
#include "memory.h"
#include "passes/compress/compressed.h"

namespace {

using namespace mcr;

constexpr int64_t kCounts[] = {0, 1, 7, 64, 200};
constexpr int kMostRanks = 9;
using memory::Ranks;
using memory::Setting;

// Makes the schedule of a rank's call.
using Algorithm = std::function<void(const Call&, int rank, int size, Schedule&)>;

// Whether the algorithm leaves what the operation means in the memory of all ranks, whatever the order of its tasks.
bool agrees(const Setting& setting, const Algorithm& algorithm, uint32_t seed) {
  Ranks want(setting, seed);
  Ranks got(setting, seed);
  interpreter::perform(want.calls);
  std::vector<Schedule> schedules(static_cast<std::size_t>(setting.size));
  for (int rank = 0; rank < setting.size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    algorithm(got.calls[index], rank, setting.size, schedules[index]);
  }
  const auto problem = interpreter::run(schedules, seed);
  if (!problem.empty()) check::failed("schedule", 0, setting.text() + ": " + problem);
  return problem.empty() && got == want;
}

void check_values(Op op, DType dtype, RedOp red, const Algorithm& algorithm) {
  static uint32_t seed = 0;
  for (int size = 1; size <= kMostRanks; ++size) {
    for (const int64_t count : kCounts) {
      for (const bool vectored : {false, true}) {
        if (vectored && !row(op).is(kVectored)) continue;
        ++seed;
        const int root = row(op).is(kRooted) ? static_cast<int>(seed % static_cast<uint32_t>(size)) : 0;
        const Setting setting{op, dtype, red, size, count, root, vectored};
        if (!agrees(setting, algorithm, seed)) check::failed("algorithm", 0, setting.text());
      }
    }
  }
}

// An algorithm for the operation, with every type that it takes, reduction, number of ranks and size, even and
// vectored.
void check_algorithm(Op op, const Algorithm& algorithm, const std::vector<DType>& types = {}) {
  for (std::size_t d = 0; d < kDTypes.size(); ++d) {
    const auto dtype = static_cast<DType>(d);
    if (!types.empty() && std::ranges::find(types, dtype) == types.end()) continue;
    if (!row(op).is(kReduces)) {
      check_values(op, dtype, RedOp::SUM, algorithm);
      continue;
    }
    for (std::size_t r = 0; r < kReductions.size(); ++r) {
      const auto red = static_cast<RedOp>(r);
      if (red != RedOp::AVG && defined(dtype, red)) check_values(op, dtype, red, algorithm);
    }
  }
}

// Loses nothing. Of variable size it drops the zeros at the end.
class Plain final : public Codec {
 public:
  explicit Plain(bool fixed) : Codec("plain"), fixed_(fixed) {}
  bool accepts(DType) const override { return true; }
  bool fixed() const override { return fixed_; }
  int64_t capacity(int64_t count, DType dtype) const override { return count * size_of(dtype) + 1; }
  int64_t encode(const void* in, int64_t count, DType dtype, std::byte* out) const override {
    int64_t bytes = count * size_of(dtype);
    const auto* from = static_cast<const std::byte*>(in);
    out[0] = std::byte{1};
    std::copy_n(from, bytes, out + 1);
    if (fixed_) return capacity(count, dtype);
    while (bytes > 0 && from[bytes - 1] == std::byte{0}) --bytes;
    return bytes + 1;
  }
  void decode(const std::byte* in, int64_t bytes, void* out, int64_t count, DType dtype) const override {
    CHECK(in[0] == std::byte{1});
    auto* to = static_cast<std::byte*>(out);
    const int64_t all = count * size_of(dtype), sent = fixed_ ? all : bytes - 1;
    std::copy_n(in + 1, sent, to);
    std::fill_n(to + sent, all - sent, std::byte{0});
  }
  int64_t encode_failure(const std::string&, int, int64_t, DType, std::byte* out) const override {
    out[0] = std::byte{2};
    return 1;
  }

 private:
  const bool fixed_;
};

}  // namespace

TEST(emulated_operations_mean_what_they_say) {
  for (std::size_t i = 0; i < kOps.size(); ++i) {
    const auto op = static_cast<Op>(i);
    if (row(op).fallback == Fallback::Exchange) check_algorithm(op, emulate);
  }
}

TEST(no_rank_leaves_an_emulated_barrier_before_all_have_come) {
  CostModel model;
  model.add({.kind = Task::Kind::Issue, .op = Op::send, .name = "x"}, {.alpha = 1});
  model.add({.kind = Task::Kind::Copy}, {});
  Call barrier;
  barrier.op = Op::barrier;
  for (int size = 2; size <= kMostRanks; ++size) {
    std::vector<Schedule> schedules(static_cast<std::size_t>(size));
    std::vector<int> members;
    std::vector<Job> jobs;
    for (int rank = 0; rank < size; ++rank) {
      auto& schedule = schedules[static_cast<std::size_t>(rank)];
      emulate(barrier, rank, size, schedule);
      jobs.push_back({.schedule = &schedule, .rank = rank, .parts = {{"x"}}});
      members.push_back(rank);
    }
    barriers::check_waits(jobs, model, {{members}, true});
  }
}

TEST(striped_operations_mean_what_they_say) {
  for (const auto& stripes : {Stripes{500, {false, true}}, Stripes{333, {true, false}}, Stripes{950, {}}}) {
    const auto striped = [&](const Call& call, int, int size, Schedule& schedule) {
      stripe(call, size, stripes, schedule);
      for (const auto& task : schedule.tasks()) {
        const auto& part = task.call;
        if (task.kind != Task::Kind::Issue || !part.vectored) continue;
        if (part.op != Op::reduce_scatter && !stripes.packed[task.part]) continue;
        // Libraries that need blocks without gaps do not look at displacements.
        CHECK(std::ranges::equal(part.in_displs, contiguous(part.in_counts)));
        CHECK(std::ranges::equal(part.out_displs, contiguous(part.out_counts)));
      }
    };
    for (std::size_t i = 0; i < kOps.size(); ++i) {
      const auto op = static_cast<Op>(i);
      if (row(op).is(kCuttable)) check_algorithm(op, striped, {DType::Byte, DType::Half, DType::Double});
    }
  }
}

TEST(any_share_of_any_block_can_be_cut) {
  for (const int64_t count : {int64_t{0}, int64_t{63}, int64_t{128}, int64_t{100'000}, int64_t{1} << 60}) {
    int64_t before = 0;
    for (int32_t share = 0; share <= Stripes::kWhole; ++share) {
      const int64_t cut = first_piece(count, {share});
      CHECK(cut >= before && cut <= count && cut % 64 == 0);
      before = cut;
    }
    CHECK(first_piece(count, {0}) == 0 && count - before < 64);
  }
}

TEST(compressed_operations_mean_what_they_say) {
  for (const bool fixed : {true, false}) {
    const Plain codec(fixed);
    const auto compressed = [&](const Call& call, int rank, int size, Schedule& schedule) {
      Compressed(schedule, call, rank, size, codec).build(0);
    };
    for (std::size_t i = 0; i < kOps.size(); ++i) {
      const auto op = static_cast<Op>(i);
      const bool travels = row(op).is(kCompressible) && !row(op).is(kPeer);
      if (travels) check_algorithm(op, compressed, {DType::Float, DType::Double});
    }
  }
}

// Several calls of one kind with different sizes, done by one schedule on each rank.
void check_fused(Op op, DType dtype, RedOp red, int size, uint32_t seed) {
  const int root = row(op).is(kRooted) ? static_cast<int>(seed % static_cast<uint32_t>(size)) : 0;
  std::vector<Ranks> want, got;
  for (const int64_t count : {7, 0, 64, 1}) {
    ++seed;
    for (auto* list : {&want, &got}) list->emplace_back(Setting{op, dtype, red, size, count, root, false}, seed);
    interpreter::perform(want.back().calls);
  }
  std::vector<Schedule> schedules(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    auto& schedule = schedules[index];
    std::vector<Call> calls;
    for (const auto& one : got) calls.push_back(one.calls[index]);
    const auto issued = fuse(calls, rank, size, schedule);
    CHECK(schedule.tasks()[issued].call.out.count != 0 && !schedule.late());
  }
  const auto problem = interpreter::run(schedules, seed);
  CHECK(problem.empty());
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(want[i] == got[i]);
}

TEST(fused_operations_mean_what_they_say) {
  uint32_t seed = 0;
  for (std::size_t i = 0; i < kOps.size(); ++i) {
    const auto op = static_cast<Op>(i);
    if (!row(op).is(kFusible)) continue;
    for (int size = 1; size <= kMostRanks; ++size) {
      for (const auto dtype : {DType::Bool, DType::Half, DType::Int, DType::Double}) {
        for (const auto red : {RedOp::SUM, RedOp::MAX}) {
          if (!row(op).is(kReduces) && red != RedOp::SUM) continue;
          check_fused(op, dtype, red, size, seed += 100);
        }
      }
    }
  }
}

TEST(operations_without_a_fallback_are_refused) {
  Call call;
  call.op = Op::send;
  Schedule schedule;
  bool refused = false;
  try {
    emulate(call, 0, 2, schedule);
  } catch (const Error& error) {
    refused = error.code() == ErrorCode::Unsupported;
  }
  CHECK(refused && schedule.tasks().empty());
}

TEST(parts_are_adjacent_and_nearly_equal) {
  for (const int64_t count : kCounts) {
    for (const int64_t parts : {1, 3, 64}) {
      int64_t end = 0;
      for (int64_t index = 0; index < parts; ++index) {
        const auto part = part_of(count, index, parts);
        CHECK(part.begin == end && part.count >= count / parts && part.count <= (count + parts - 1) / parts);
        end = part.begin + part.count;
      }
      CHECK(end == count);
    }
  }
}

TEST(large_messages_are_cut) {
  constexpr int64_t kCount = (int64_t{5} << 28) + 1;  // five quarters of a piece, as bytes
  Call call;
  call.op = Op::broadcast;
  call.out = {nullptr, kCount};
  Schedule schedule;
  emulate(call, 1, 2, schedule);
  int64_t received = 0;
  for (const auto& task : schedule.tasks()) received += task.call.out.count;
  CHECK(schedule.tasks().size() == 2 && received == kCount);
}

TEST(the_interpreter_finds_what_never_ends) {
  std::vector<Schedule> schedules(2);
  Call call;
  call.op = Op::recv;
  call.root = 1;
  schedules[0].issue(call);
  CHECK(interpreter::run(schedules, 1).find("rank 0: task 0 never ends") != std::string::npos);
}
