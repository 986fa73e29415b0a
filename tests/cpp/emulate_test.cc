// SPDX-License-Identifier: Apache-2.0
// Every op that has a fallback, on 1 to 4 ranks, blocking and started, even and vectored, on a communicator that has
// nothing but messages. One formula says what rank `from` holds for block `block`; the rest follows from the op's row.
#include "algorithms/emulate.h"

#include "check.h"
#include "ranks.h"

namespace {

using namespace mcr;
using Ints = std::vector<int32_t>;
using Counts = std::vector<int64_t>;

constexpr int32_t kUntouched = -7;

int32_t value(int from, int block, int64_t i) { return static_cast<int32_t>(1000 * from + 100 * block + i % 100); }

// One side of a vectored call: the blocks lie in reverse order with a hole before each.
struct Side {
  Counts counts, displs;
  Ints data;

  Side(const Counts& blocks, bool vectored, int32_t fill) : counts(blocks), displs(blocks.size()) {
    const int64_t hole = vectored ? 1 : 0;
    int64_t end = 0;
    for (std::size_t n = 0; n < blocks.size(); ++n) {
      const auto i = vectored ? blocks.size() - 1 - n : n;
      displs[i] = end + hole;
      end = displs[i] + blocks[i];
    }
    data.assign(static_cast<std::size_t>(end), fill);
  }

  void set(int block, const std::function<int32_t(int64_t)>& element) {
    const auto index = static_cast<std::size_t>(block);
    for (int64_t i = 0; i < counts[index]; ++i) data[static_cast<std::size_t>(displs[index] + i)] = element(i);
  }
};

struct Case {
  Op op;
  int64_t count;
  bool vectored;
  bool async;
  int root;
};

// What one rank gives, and what it must have in the end.
struct Expected {
  Side in, out, result;
};

// Element `k` of block `i` of what `rank` must have in the end.
int32_t result_of(const Case& what, int rank, int size, int i, int64_t k) {
  const auto sum = [&](int block) {
    int32_t total = 0;
    for (int from = 0; from < size; ++from) total += value(from, block, k);
    return total;
  };
  switch (what.op) {
    case Op::broadcast:
      return value(what.root, 0, k);
    case Op::all_reduce:
      return sum(0);
    case Op::reduce:
      return rank == what.root ? sum(0) : value(rank, 0, k);
    case Op::reduce_scatter:
      return sum(rank);
    case Op::scatter:
      return value(what.root, rank, k);
    case Op::all_to_all:
      return value(i, rank, k);
    default:
      return value(i, 0, k);
  }
}

Expected expected_of(const Case& what, int rank, int size) {
  const OpRow& op = row(what.op);
  const auto length = [&](int from, int to) { return what.count + (what.vectored ? (from + 2 * to) % 3 : 0); };
  const auto all_blocks = [&](auto of_block) {
    Counts made;
    for (int i = 0; i < size; ++i) made.push_back(of_block(i));
    return made;
  };
  const bool here = !op.is(kRooted) || rank == what.root;
  Counts in, out;
  switch (op.extent) {
    case Extent::None:
      break;
    case Extent::Same:
      out = {what.count};
      break;
    case Extent::Gather:
      in = {length(rank, 0)};
      if (here) out = all_blocks([&](int i) { return length(i, 0); });
      break;
    case Extent::Scatter:
      if (here) in = all_blocks([&](int i) { return length(0, i); });
      out = {length(0, rank)};
      break;
    case Extent::Exchange:
      in = all_blocks([&](int i) { return length(rank, i); });
      out = all_blocks([&](int i) { return length(i, rank); });
      break;
  }
  Expected made{{in, what.vectored && in.size() > 1, 0},
                {out, what.vectored && out.size() > 1, kUntouched},
                {out, what.vectored && out.size() > 1, kUntouched}};
  for (int i = 0; std::cmp_less(i, in.size()); ++i) {
    const int block = op.extent == Extent::Gather ? 0 : i;
    made.in.set(i, [&](int64_t k) { return value(rank, block, k); });
  }
  if (op.extent == Extent::Same) made.out.set(0, [&](int64_t k) { return value(rank, 0, k); });
  for (int i = 0; std::cmp_less(i, out.size()); ++i) {
    made.result.set(i, [&](int64_t k) { return result_of(what, rank, size, i, k); });
  }
  return made;
}

Call call_of(const Case& what, Expected& data) {
  Call call;
  call.op = what.op;
  if (row(what.op).extent != Extent::None) call.dtype = DType::Int;
  call.root = what.root;
  call.vectored = what.vectored;
  call.in = ranks::buffer(data.in.data);
  call.out = ranks::buffer(data.out.data);
  if (what.vectored && data.in.counts.size() > 1) call.in_counts = data.in.counts, call.in_displs = data.in.displs;
  if (what.vectored && data.out.counts.size() > 1) call.out_counts = data.out.counts, call.out_displs = data.out.displs;
  // A group of one has one block, which looks like a whole buffer above.
  const OpRow& op = row(what.op);
  if (what.vectored && op.extent != Extent::Gather && data.in.counts.size() == 1) call.in_counts = data.in.counts;
  if (what.vectored && op.extent != Extent::Scatter && data.out.counts.size() == 1) call.out_counts = data.out.counts;
  return call;
}

void check_case(Group& group, const Case& what) {
  auto data = expected_of(what, group.rank(), group.size());
  const Ints given = data.in.data;
  const Call call = call_of(what, data);
  if (what.async) {
    const auto work = ranks::start(group, call);
    wait(*work, std::chrono::seconds(60), nullptr);
  } else {
    ranks::run(group, call);
  }
  if (data.out.data == data.result.data && data.in.data == given) return;
  check::failed("emulate_test", group.rank(),
                std::string(row(what.op).name) + " of " + std::to_string(what.count) + (what.vectored ? " v" : "") +
                    (what.async ? " async" : "") + " root " + std::to_string(what.root) + " on " +
                    std::to_string(group.size()) + " ranks");
}

// All-reduces one number per rank; the result in place.
template <class T>
void reduce_one(Group& group, T& number, DType dtype, RedOp red) {
  Call call;
  call.op = Op::all_reduce;
  call.dtype = dtype;
  call.red = red;
  call.out = {&number, 1};
  ranks::run(group, call);
}

}  // namespace

TEST(every_op) {
  for (int size = 1; size <= 4; ++size) {
    ranks::together(size, [&](Group& group) {
      for (std::size_t i = 0; i < kOps.size(); ++i) {
        if (kOps[i].fallback == Fallback::None) continue;
        for (const int64_t count : {0, 1, 5, 4099}) {
          for (const bool vectored : {false, true}) {
            if (vectored && !kOps[i].is(kVectored)) continue;
            for (const bool async : {false, true}) {
              check_case(group, {static_cast<Op>(i), count, vectored, async, 0});
              if (kOps[i].is(kRooted)) check_case(group, {static_cast<Op>(i), count, vectored, async, size - 1});
            }
          }
        }
      }
    });
  }
}

TEST(averages) {
  ranks::together(3, [](Group& group) {
    float number = static_cast<float>(group.rank());
    reduce_one(group, number, DType::Float, RedOp::AVG);
    CHECK(number == 1.0F);
    int32_t whole = group.rank() == 0 ? 8 : 0;
    reduce_one(group, whole, DType::Int, RedOp::AVG);
    CHECK(whole == 2);
    whole = group.rank() == 0 ? -8 : 0;
    reduce_one(group, whole, DType::Int, RedOp::AVG);
    CHECK(whole == -2);
  });
}

TEST(an_average_of_reduce_changes_the_root_alone) {
  ranks::together(2, [](Group& group) {
    Ints data{10 + group.rank() * 2};
    Call call;
    call.op = Op::reduce;
    call.dtype = DType::Int;
    call.red = RedOp::AVG;
    call.root = 1;
    call.out = ranks::buffer(data);
    ranks::run(group, call);
    CHECK(data[0] == (group.rank() == 1 ? 11 : 10));
  });
}

TEST(bools) {
  ranks::together(2, [](Group& group) {
    for (const auto& [red, expected] : {std::pair{RedOp::SUM, true}, {RedOp::PRODUCT, false}, {RedOp::BXOR, true}}) {
      bool flag = group.rank() == 1;
      reduce_one(group, flag, DType::Bool, red);
      CHECK(flag == expected);
    }
  });
}

TEST(in_place_gather_and_scatter) {
  ranks::together(3, [](Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    Ints data(3, kUntouched);
    data[rank] = group.rank();
    Call call;
    call.op = Op::all_gather;
    call.dtype = DType::Int;
    call.in = {&data[rank], 1};
    call.out = ranks::buffer(data);
    ranks::run(group, call);
    CHECK(data == Ints({0, 1, 2}));
    call.op = Op::reduce_scatter;
    std::swap(call.in, call.out);
    ranks::run(group, call);
    CHECK(data[rank] == 3 * group.rank());
  });
}

TEST(many_at_once) {
  ranks::together(3, [](Group& group) {
    constexpr int kWorks = 300;
    std::vector<Ints> data;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < kWorks; ++i) {
      data.emplace_back(static_cast<std::size_t>(i % 17), i + group.rank());
      Call call;
      call.op = i % 2 == 0 ? Op::all_reduce : Op::broadcast;
      call.dtype = DType::Int;
      call.root = i % 3;
      call.out = ranks::buffer(data.back());
      works.push_back(ranks::start(group, call));
    }
    for (int i = kWorks - 1; i >= 0; --i) {
      const auto index = static_cast<std::size_t>(i);
      wait(*works[index], std::chrono::seconds(60), nullptr);
      const int expected = i % 2 == 0 ? 3 * i + 3 : i + i % 3;
      CHECK(data[index] == Ints(data[index].size(), expected));
    }
  });
}

TEST(sizes_that_disagree_are_an_error) {
  ranks::together(2, [](Group& group) {
    Ints data(group.rank() == 0 ? 3 : 2);
    Call call;
    call.op = Op::all_reduce;
    call.dtype = DType::Int;
    call.out = ranks::buffer(data);
    const auto got = ranks::failure([&] { ranks::run(group, call); });
    CHECK(got.code == ErrorCode::Backend);
    CHECK(check::has(got.text, "memory.all_reduce", "bytes", "got"));
    // The group is still good for use.
    Ints again{1};
    call.out = ranks::buffer(again);
    ranks::run(group, call);
    CHECK(again == Ints({2}));
  });
}
