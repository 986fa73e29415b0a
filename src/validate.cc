// SPDX-License-Identifier: Apache-2.0
#include "validate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "error.h"

namespace mcr {

namespace {

using std::to_string;

[[noreturn]] void wrong(const std::string& argument, const std::string& expected, const std::string& got) {
  throw Error(ErrorCode::InvalidArgument, argument + ": expected " + expected + ", got " + got);
}

std::string elements(int64_t count) { return to_string(count) + (count == 1 ? " element" : " elements"); }

void check_reduction(const Call& call) {
  if (defined(call.dtype, call.red)) return;
  if (call.red == RedOp::PREMUL_SUM && row(call.dtype).kind == DTypeKind::Floating) {
    if (call.factor_data != nullptr || !std::isnan(call.factor)) return;
    throw Error(ErrorCode::InvalidType,
                "op: expected PREMUL_SUM with its factor (torch.distributed._make_nccl_premul_sum) for dtype " +
                    std::string(row(call.dtype).name) + ", got PREMUL_SUM without");
  }
  std::string known;
  for (std::size_t i = 0; i < kReductions.size(); ++i) {
    if (defined(call.dtype, static_cast<RedOp>(i))) known += (known.empty() ? "" : ", ") + std::string(kReductions[i]);
  }
  throw Error(ErrorCode::InvalidType, "op: expected one of " + known + " for dtype " +
                                          std::string(row(call.dtype).name) + ", got " + std::string(name(call.red)));
}

void check_root(const Call& call, const OpRow& op, int rank, int size) {
  if (call.root == kAnyRank && call.op == Op::recv) {
    if (size == 1) wrong("peer", "a group with another rank to receive from", "one of this rank alone");
    return;
  }
  const bool peer = op.is(kPeer);
  if (call.root < 0 || call.root >= size) {
    wrong(peer ? "peer" : "root", "a rank of the group (0 to " + to_string(size - 1) + " in group ranks)",
          to_string(call.root));
  }
  if (peer && call.root == rank) wrong("peer", "another rank than this one", to_string(call.root));
  if (peer && call.tag < 0) wrong("tag", "0 or more", to_string(call.tag));
}

// The side of the op that holds one block per rank, and whether this rank has that side at all.
struct Sides {
  bool in_blocks, out_blocks;
};

Sides sides(const Call& call, const OpRow& op, int rank) {
  const bool here = !op.is(kRooted) || call.root == rank;
  switch (op.extent) {
    case Extent::Gather:
      return {false, here};
    case Extent::Scatter:
      return {here, false};
    case Extent::Exchange:
      return {true, true};
    default:
      return {false, false};
  }
}

void check_uniform(const Call& call, const OpRow& op, int rank, int size) {
  const auto [in_blocks, out_blocks] = sides(call, op, rank);
  const auto blocks = [&](const char* argument, const Buffer& whole, int64_t block) {
    if (whole.count == block * size) return;
    wrong(argument, elements(block * size) + " (" + to_string(size) + " ranks x " + to_string(block) + ")",
          to_string(whole.count));
  };
  if (op.extent == Extent::Exchange) {
    if (call.in.count != call.out.count)
      wrong("output", "as many elements as input (" + to_string(call.in.count) + ")", to_string(call.out.count));
    if (call.in.count % size != 0)
      wrong("input", "a multiple of " + to_string(size) + " elements (one block per rank)", to_string(call.in.count));
  } else if (out_blocks) {
    blocks("output", call.out, call.in.count);
  } else if (in_blocks) {
    blocks("input", call.in, call.out.count);
  }
}

void check_counts(const char* side, std::span<const int64_t> counts, int size, int64_t extent) {
  const std::string argument = std::string(side) + " counts";
  if (std::cmp_not_equal(counts.size(), size))
    wrong(argument, to_string(size) + " entries (one per rank)", to_string(counts.size()));
  for (const auto count : counts) {
    if (count < 0) wrong(argument, "0 or more elements", to_string(count));
  }
  for (const auto count : counts) {  // before anybody adds them up
    if (count > extent) wrong(argument, "blocks inside the tensor's " + elements(extent), elements(count));
  }
}

void check_displacements(const char* side, std::span<const int64_t> counts, std::span<const int64_t> displs,
                         int64_t extent) {
  const std::string argument = std::string(side) + " displacements";
  if (displs.size() != counts.size())
    wrong(argument, to_string(counts.size()) + " entries (one per rank)", to_string(displs.size()));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (displs[i] < 0 || displs[i] > extent || counts[i] > extent - displs[i]) {
      wrong(argument, "blocks inside the tensor's " + elements(extent),
            "block " + to_string(i) + " from " + to_string(displs[i]) + " with " + elements(counts[i]));
    }
  }
}

void check_disjoint(std::span<const int64_t> counts, std::span<const int64_t> displs) {
  std::vector<std::size_t> order(counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return displs[a] < displs[b]; });
  int64_t end = 0;
  std::size_t last = 0;
  for (const auto i : order) {
    if (counts[i] == 0) continue;
    if (displs[i] < end)
      wrong("output displacements", "blocks that do not overlap",
            "blocks " + to_string(last) + " and " + to_string(i) + " overlapping");
    end = displs[i] + counts[i];
    last = i;
  }
}

void check_vectored(Call& call, const OpRow& op, Plan& plan, int rank, int size) {
  const auto [in_blocks, out_blocks] = sides(call, op, rank);
  const auto side = [&](const char* name, const Buffer& whole, std::span<const int64_t> counts,
                        std::span<const int64_t>& displs) {
    check_counts(name, counts, size, whole.count);
    if (displs.empty()) displs = plan.keep_packed(counts);
    check_displacements(name, counts, displs, whole.count);
  };
  // A side that is one block has no counts: nobody may find any there that were not checked.
  if (in_blocks) {
    side("input", call.in, call.in_counts, call.in_displs);
  } else {
    call.in_counts = call.in_displs = {};
  }
  if (!out_blocks) {
    call.out_counts = call.out_displs = {};
  } else {
    side("output", call.out, call.out_counts, call.out_displs);
    check_disjoint(call.out_counts, call.out_displs);
  }
  // The rank's own block: the other side's tensor must hold just that.
  const auto mine = static_cast<std::size_t>(rank);
  if (op.extent == Extent::Gather && call.out_counts.size() > mine && call.in.count != call.out_counts[mine]) {
    wrong("input", elements(call.out_counts[mine]) + " (this rank's entry of the counts)", to_string(call.in.count));
  }
  if (op.extent == Extent::Scatter && call.in_counts.size() > mine && call.out.count != call.in_counts[mine]) {
    wrong("output", elements(call.in_counts[mine]) + " (this rank's entry of the counts)", to_string(call.out.count));
  }
}

// What has no meaning on this rank, as MPI has it: the root's side on the others. Nothing may look at it unchecked.
void drop_insignificant(Call& call, const OpRow& op, int rank) {
  if (!op.is(kRooted) || call.root == rank) return;
  if (op.extent == Extent::Gather) {
    call.out = {};
    call.out_counts = call.out_displs = {};
  } else if (op.extent == Extent::Scatter) {
    call.in = {};
    call.in_counts = call.in_displs = {};
  }
}

}  // namespace

void validate(Call& call, Plan& plan, int rank, int size) {
  const OpRow& op = row(call.op);
  if (op.is(kReduces)) check_reduction(call);
  if (op.is(kRooted) || op.is(kPeer)) check_root(call, op, rank, size);
  drop_insignificant(call, op, rank);
  if (call.vectored) {
    check_vectored(call, op, plan, rank, size);
  } else if (op.extent != Extent::None && op.extent != Extent::Same) {
    check_uniform(call, op, rank, size);
  }
}

}  // namespace mcr
