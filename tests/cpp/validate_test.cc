// SPDX-License-Identifier: Apache-2.0
#include "engine/validate.h"

#include <limits>

#include "check.h"
#include "ranks.h"

namespace {

using namespace mcr;
using Counts = std::vector<int64_t>;

Call call_of(Op op, int64_t in, int64_t out) {
  Call call;
  call.op = op;
  call.in.count = in;
  call.out.count = out;
  return call;
}

Call vectored(Op op, int64_t in, int64_t out) {
  Call call = call_of(op, in, out);
  call.vectored = true;
  return call;
}

ranks::Failure validated(Call call, int rank = 0, int size = 2) {
  Extras extras;
  return ranks::failure([&] { validate(call, extras, rank, size); });
}

bool accepted(const Call& call, int rank = 0, int size = 2) {
  const auto got = validated(call, rank, size);
  return got.text.empty() || check::has(got.text, "no error");
}

template <class... Parts>
bool refused(const ranks::Failure& got, ErrorCode code, Parts... parts) {
  return got.code == code && !got.text.empty() && check::has(got.text, parts...);
}

constexpr auto kInvalid = ErrorCode::InvalidArgument;

}  // namespace

TEST(reductions) {
  for (std::size_t d = 0; d < kDTypes.size(); ++d) {
    for (std::size_t r = 0; r < kReductions.size(); ++r) {
      Call call = call_of(Op::all_reduce, 0, 3);
      call.dtype = static_cast<DType>(d);
      call.red = static_cast<RedOp>(r);
      const auto got = validated(call);
      CHECK(got.text.empty() == defined(call.dtype, call.red));
      if (!got.text.empty()) CHECK(refused(got, ErrorCode::InvalidType, kDTypes[d].name, kReductions[r], "expected"));
    }
  }
  Call scaled = call_of(Op::all_reduce, 0, 3);
  scaled.red = RedOp::PREMUL_SUM;
  scaled.factor = 0.5;
  CHECK(refused(validated(scaled), ErrorCode::InvalidType, "uint8", "got PREMUL_SUM"));
  scaled.dtype = DType::Float;
  CHECK(accepted(scaled));
  scaled.factor = Call().factor;
  CHECK(refused(validated(scaled), ErrorCode::InvalidType, "float32", "with its factor", "got PREMUL_SUM without"));
  scaled.factor_data = &scaled;
  CHECK(accepted(scaled));
  Call broadcast = call_of(Op::broadcast, 0, 3);
  broadcast.red = RedOp::PREMUL_SUM;
  CHECK(accepted(broadcast));  // not looked at
}

TEST(roots_and_peers) {
  for (const auto op : {Op::broadcast, Op::reduce}) {
    Call call = call_of(op, 0, 4);
    for (const int root : {0, 1}) {
      call.root = root;
      CHECK(accepted(call));
    }
    for (const int root : {-1, 2}) {
      call.root = root;
      CHECK(refused(validated(call), kInvalid, "root", "0 to 1", std::to_string(root)));
    }
  }
  Call send = call_of(Op::send, 0, 4);
  send.root = 5;
  CHECK(refused(validated(send), kInvalid, "peer", "0 to 1", "5"));
  send.root = 0;
  CHECK(refused(validated(send), kInvalid, "peer", "another rank"));
  send.root = kAnyRank;
  CHECK(refused(validated(send), kInvalid, "peer", "-1"));
  send.root = 1;
  CHECK(accepted(send));
  send.tag = -1;
  CHECK(refused(validated(send), kInvalid, "tag", "-1"));
  Call recv = call_of(Op::recv, 0, 4);
  recv.root = kAnyRank;
  CHECK(accepted(recv));
  CHECK(refused(validated(recv, 0, 1), kInvalid, "peer", "another rank to receive from", "this rank alone"));
  recv.tag = -1;
  CHECK(refused(validated(recv), kInvalid, "tag", "-1"));
  recv.root = recv.tag = 0;
  CHECK(refused(validated(recv), kInvalid, "peer", "another rank than this one"));
}

TEST(even_blocks) {
  CHECK(accepted(call_of(Op::all_gather, 3, 6)));
  CHECK(refused(validated(call_of(Op::all_gather, 3, 7)), kInvalid, "output", "6 elements", "2 ranks x 3", "got 7"));
  CHECK(accepted(call_of(Op::reduce_scatter, 6, 3)));
  CHECK(refused(validated(call_of(Op::reduce_scatter, 5, 3)), kInvalid, "input", "6 elements", "got 5"));
  CHECK(accepted(call_of(Op::gather, 3, 6)));
  CHECK(refused(validated(call_of(Op::gather, 3, 5)), kInvalid, "output", "got 5"));
  CHECK(accepted(call_of(Op::gather, 3, 0), 1));  // not the root
  CHECK(accepted(call_of(Op::scatter, 0, 3), 1));
  CHECK(refused(validated(call_of(Op::scatter, 0, 3)), kInvalid, "input", "got 0"));
  CHECK(accepted(call_of(Op::all_to_all, 6, 6)));
  CHECK(refused(validated(call_of(Op::all_to_all, 6, 4)), kInvalid, "output", "input (6)", "got 4"));
  CHECK(refused(validated(call_of(Op::all_to_all, 4, 6)), kInvalid, "output", "input (4)", "got 6"));
  CHECK(refused(validated(call_of(Op::all_to_all, 5, 5)), kInvalid, "input", "multiple of 2", "got 5"));
  CHECK(accepted(call_of(Op::barrier, 0, 0)));
}

TEST(counts) {
  const Counts two{1, 2}, three{1, 1, 1}, negative{4, -1};
  Call call = vectored(Op::all_gather, 1, 3);
  call.out_counts = two;
  CHECK(accepted(call));
  call.out_counts = three;
  CHECK(refused(validated(call), kInvalid, "output counts", "2 entries", "got 3"));
  call.out_counts = {};
  CHECK(refused(validated(call), kInvalid, "output counts", "got 0"));
  call.out_counts = negative;
  CHECK(refused(validated(call), kInvalid, "output counts", "got -1"));
  call.out_counts = two;
  call.in.count = 2;
  CHECK(refused(validated(call), kInvalid, "input", "1 element", "got 2"));

  call = vectored(Op::reduce_scatter, 3, 2);
  call.in_counts = two;
  CHECK(accepted(call, 1));
  CHECK(refused(validated(call, 0), kInvalid, "output", "1 element ", "got 2"));
  call.in_counts = three;
  CHECK(refused(validated(call), kInvalid, "input counts", "2 entries"));

  call = vectored(Op::all_to_all, 4, 4);
  const Counts one{1}, other{3};
  call.in_counts = one;
  call.out_counts = other;
  CHECK(refused(validated(call, 0, 1), kInvalid, "output counts", "1 element ", "input counts", "got 3"));
  call.out_counts = one;
  CHECK(accepted(call, 0, 1));
  call.in_counts = call.out_counts = two;
  CHECK(accepted(call, 1));

  // A rank that is not the root needs no counts; those it gives mean nothing, as in MPI.
  call = vectored(Op::gather, 2, 0);
  CHECK(accepted(call, 1));
  call.out_counts = two;
  CHECK(accepted(call, 1));
  call.in.count = 3;
  CHECK(accepted(call, 1));
}

TEST(displacements) {
  const Counts counts{2, 2}, packed{0, 2}, backwards{2, 0}, overlapping{0, 1}, outside{0, 3}, negative{-1, 2}, one{0};
  const Counts huge{0, int64_t{1} << 62}, equal{1, 1}, some{0, 3}, late{1, 2}, inside{2, 1}, behind{5, 0};
  Call call = vectored(Op::all_to_all, 4, 4);
  call.in_counts = call.out_counts = counts;
  CHECK(accepted(call));
  for (const auto* good : {&packed, &backwards}) {
    call.in_displs = call.out_displs = *good;
    CHECK(accepted(call));
  }
  call.in_displs = overlapping;  // reading something twice is fine
  CHECK(accepted(call));
  call.out_displs = overlapping;
  CHECK(refused(validated(call), kInvalid, "output displacements", "overlap", "blocks 0 and 1"));
  for (const auto* bad : {&outside, &negative, &huge}) {
    call.out_displs = packed;
    call.in_displs = *bad;
    CHECK(refused(validated(call), kInvalid, "input displacements", "4 elements", "block"));
    call.in_displs = packed;
    call.out_displs = *bad;
    CHECK(refused(validated(call), kInvalid, "output displacements", "4 elements", "block"));
  }
  call.out_displs = one;
  CHECK(refused(validated(call), kInvalid, "output displacements", "2 entries", "got 1"));
  call.out_displs = late;
  CHECK(refused(validated(call), kInvalid, "output displacements", "blocks 0 and 1 overlapping"));

  // Empty blocks overlap nothing, but lie inside the tensor.
  Call gather = vectored(Op::all_gather, 0, 4);
  gather.out_counts = some;
  for (const auto* good : {&equal, &inside}) {
    gather.out_displs = *good;
    CHECK(accepted(gather));
  }
  gather.out_displs = behind;
  CHECK(refused(validated(gather), kInvalid, "output displacements", "block 0 from 5 with 0 elements"));
}

// As in MPI, which does not look at them.
TEST(arguments_that_mean_nothing_here_are_dropped) {
  const Counts counts{2, 3}, displs{0, 2};
  for (const auto op : {Op::gather, Op::scatter}) {
    for (const bool root : {true, false}) {
      for (const bool uneven : {true, false}) {
        int memory = 0;
        Call call = uneven ? vectored(op, 2, 2) : call_of(op, 2, 2);
        auto& whole = op == Op::gather ? call.out : call.in;  // of all ranks, at the root
        whole.count = uneven ? 5 : 4;
        call.in.data = call.out.data = &memory;
        if (uneven) call.in_counts = call.out_counts = counts, call.in_displs = call.out_displs = displs;
        Extras extras;
        validate(call, extras, root ? 0 : 1, 2);
        const auto& block = op == Op::gather ? call.in : call.out;
        CHECK(block.data == &memory && block.count == 2);
        CHECK((whole.data != nullptr) == root && (whole.count != 0) == root);
        CHECK(call.in_counts.empty() == !(uneven && root && op == Op::scatter));
        CHECK(call.out_counts.empty() == !(uneven && root && op == Op::gather));
        CHECK(call.in_displs.empty() == call.in_counts.empty() && call.out_displs.empty() == call.out_counts.empty());
      }
    }
  }
}

TEST(packed_displacements_are_filled_in) {
  const Counts counts{2, 0, 3};
  Call call = vectored(Op::all_to_all, 5, 5);
  call.in_counts = call.out_counts = counts;
  Extras extras;
  validate(call, extras, 0, 3);
  const Counts expected{0, 2, 2};
  CHECK(std::equal(call.in_displs.begin(), call.in_displs.end(), expected.begin(), expected.end()));
  CHECK(std::equal(call.out_displs.begin(), call.out_displs.end(), expected.begin(), expected.end()));
}

TEST(blocks_that_exceed_the_buffer) {
  const Counts counts{3, 3};
  Call call = vectored(Op::all_gather, 3, 5);
  call.out_counts = counts;
  CHECK(refused(validated(call), kInvalid, "output: expected 6 elements (the sum of output counts), got 5"));
  const Counts displs{0, 3};
  call.out_displs = displs;
  CHECK(refused(validated(call), kInvalid, "output displacements: expected blocks inside the 5 elements of output",
                "block 1 from 3 with 3 elements"));
  const Counts huge{std::numeric_limits<int64_t>::max(), 3};
  call.out_displs = {};
  call.out_counts = huge;
  CHECK(refused(validated(call), kInvalid, "output: expected 9223372036854775807 elements", "got 5"));
}

TEST(names_of_the_caller) {
  constexpr Names kWords{"gatherv", "tensor", "result", "scounts", "rcounts", "sdispls", "displs", "dst"};
  Extras extras;
  extras.names = &kWords;
  const Counts counts{3, 3}, one{0};
  Call call = vectored(Op::gather, 3, 5);
  call.out_counts = counts;
  const auto text = [&] { return ranks::failure([&] { validate(call, extras, 0, 2); }).text; };
  CHECK(check::has(text(), "result: expected 6 elements (the sum of rcounts), got 5"));
  call.out.count = 6;
  call.out_displs = one;
  CHECK(check::has(text(), "displs: expected 2 entries"));
  call.out_displs = {};
  call.in.count = 2;
  CHECK(check::has(text(), "tensor: expected 3 elements (this rank's entry of rcounts), got 2"));
  call.root = 2;
  CHECK(check::has(text(), "dst: expected a rank of the group"));
}
