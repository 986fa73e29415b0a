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
#include "algorithms/stripe.h"
#include "base/error.h"
#include "base/ops.h"
#include "check.h"
#include "interpreter.h"
#include "passes/compress/compressed.h"

namespace {

using namespace mcr;

constexpr int64_t kCounts[] = {0, 1, 7, 64, 200};
constexpr int kMostRanks = 9;
constexpr std::byte kUntouched{0xA5};

// One operation on `size` ranks, with the memory of all of them.
struct Setting {
  Op op;
  DType dtype;
  RedOp red;
  int size;
  int64_t count;  // elements of a block; of vectored ones the largest
  int root;
  bool vectored;

  std::string text() const {
    return std::string(row(op).name) + (vectored ? "v" : "") + " " + std::string(name(red)) + " of " +
           std::to_string(count) + " " + std::string(row(dtype).name) + ", root " + std::to_string(root) + " of " +
           std::to_string(size);
  }
};

class Ranks {
 public:
  Ranks(const Setting& setting, uint32_t seed) : setting_(setting), memory_(2 * size()), vectors_(4 * size()) {
    std::mt19937 generator(seed);
    for (int rank = 0; rank < setting.size; ++rank) make(rank, generator);
  }

  std::vector<Call> calls;

  bool operator==(const Ranks& other) const { return memory_ == other.memory_; }

 private:
  using Memory = std::vector<std::byte>;

  std::size_t size() const { return static_cast<std::size_t>(setting_.size); }

  // Elements from rank `from` to rank `to`. Not all blocks are alike, and some are empty.
  int64_t block(int from, int to) const {
    if (!setting_.vectored) return setting_.count;
    const int turn =
        setting_.op == Op::all_to_all ? from + 2 * to : (row(setting_.op).extent == Extent::Gather ? from : to);
    return turn % 3 == 1 ? 0 : std::max<int64_t>(0, setting_.count - turn % 4);
  }

  Buffer allocate(std::size_t index, int64_t count, std::mt19937* values) {
    auto& memory = memory_[index];
    const auto bytes = static_cast<std::size_t>(count * size_of(setting_.dtype));
    memory.assign(bytes + 1, kUntouched);  // a byte behind the end, which nothing may change
    for (std::size_t i = 0; values != nullptr && i < bytes; ++i) memory[i] = static_cast<std::byte>((*values)());
    if (values != nullptr) restrict_values({memory.data(), bytes});
    return {memory.data(), count};
  }

  // Bools are 0 and 1. Floating-point numbers are finite: of two NaNs an addition takes either one's bits.
  void restrict_values(std::span<std::byte> memory) const {
    const auto kind = row(setting_.dtype).kind;
    const auto size = static_cast<std::size_t>(size_of(setting_.dtype)) / (kind == DTypeKind::Complex ? 2 : 1);
    for (std::size_t i = 0; i < memory.size(); ++i) {
      if (kind == DTypeKind::Bool) memory[i] &= std::byte{1};
      const bool exponent = (kind == DTypeKind::Floating || kind == DTypeKind::Complex) && i % size == size - 1;
      if (exponent) memory[i] &= std::byte{0xBF};
    }
  }

  // The counts and displacements of a side with a block per rank, the last block first and with gaps; its extent.
  int64_t lay_out(std::size_t index, const std::vector<int64_t>& counts, std::span<const int64_t>& counts_of_call,
                  std::span<const int64_t>& displs_of_call) {
    auto& displs = vectors_[index + 1];
    displs.assign(counts.size(), 0);
    int64_t end = 0;
    for (std::size_t i = counts.size(); i-- > 0;) {
      displs[i] = end + 1;
      end = displs[i] + counts[i];
    }
    vectors_[index] = counts;
    counts_of_call = vectors_[index];
    displs_of_call = displs;
    return end;
  }

  void make(int rank, std::mt19937& generator) {
    const auto index = static_cast<std::size_t>(rank);
    const OpRow& op = row(setting_.op);
    Call call;
    call.op = setting_.op;
    call.dtype = setting_.dtype;
    call.red = setting_.red;
    call.root = setting_.root;
    call.vectored = setting_.vectored;
    const bool root = !op.is(kRooted) || rank == setting_.root;
    const auto whole = [&](bool incoming, std::span<const int64_t>& counts, std::span<const int64_t>& displs) {
      std::vector<int64_t> blocks;
      for (int i = 0; i < setting_.size; ++i) {
        const bool gathers = op.extent == Extent::Gather;
        blocks.push_back(incoming || gathers ? block(i, rank) : block(rank, i));
      }
      if (!setting_.vectored) return setting_.count * setting_.size;
      return lay_out(4 * index + (incoming ? 2 : 0), blocks, counts, displs);
    };
    const bool in_blocks = op.extent == Extent::Scatter || op.extent == Extent::Exchange;
    const bool out_blocks = op.extent == Extent::Gather || op.extent == Extent::Exchange;
    if (op.extent == Extent::Same) {
      call.out = allocate(2 * index, setting_.count, &generator);
    } else if (op.extent != Extent::None) {
      if (!in_blocks || root) {
        const int64_t count = in_blocks ? whole(false, call.in_counts, call.in_displs) : block(rank, 0);
        call.in = allocate(2 * index, count, &generator);
      }
      if (!out_blocks || root) {
        const int64_t count = out_blocks ? whole(true, call.out_counts, call.out_displs) : block(setting_.root, rank);
        call.out = allocate(2 * index + 1, count, nullptr);
      }
    }
    calls.push_back(call);
  }

  const Setting setting_;
  std::vector<Memory> memory_;
  std::vector<std::vector<int64_t>> vectors_;
};

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
  int64_t encode_failure(const std::string&, int64_t, DType, std::byte* out) const override {
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

TEST(striped_operations_mean_what_they_say) {
  for (const auto& stripes : {Stripes{500, {false, true}}, Stripes{333, {true, false}}, Stripes{950, {}}}) {
    const auto striped = [&](const Call& call, int, int size, Schedule& schedule) {
      stripe(call, size, stripes, schedule);
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
    const auto issued = fuse(calls, rank, size, schedule, [&](int64_t bytes) { return schedule.scratch(bytes); });
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
