// SPDX-License-Identifier: Apache-2.0
#include "engine/validate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace mcr {

namespace {

using std::to_string;

[[noreturn]] void wrong(const std::string& argument, const std::string& expected, const std::string& got) {
  throw Error(ErrorCode::InvalidArgument, argument + ": expected " + expected + ", got " + got);
}

std::string elements(int64_t count) { return to_string(count) + (count == 1 ? " element" : " elements"); }

void check_reduction(const Call& call) {
  if (defined(call.dtype, call.red)) return;
  if (takes_factor(call.dtype, call.red)) {
    if (call.factor_data != nullptr || !std::isnan(call.factor)) return;
    throw Error(ErrorCode::InvalidType,
                "op: expected PREMUL_SUM with its factor (torch.distributed._make_nccl_premul_sum) for dtype " +
                    std::string(row(call.dtype).name) + ", got PREMUL_SUM without");
  }
  std::vector<std::string_view> known;
  for (std::size_t i = 0; i < kReductions.size(); ++i) {
    if (defined(call.dtype, static_cast<RedOp>(i))) known.push_back(kReductions[i]);
  }
  throw Error(ErrorCode::InvalidType, "op: expected one of " + joined(known) + " for dtype " +
                                          std::string(row(call.dtype).name) + ", got " + std::string(name(call.red)));
}

void check_root(const Call& call, const OpRow& op, const Names& names, int rank, int size) {
  const bool peer = op.is(kPeer);
  const char* name = names.root != nullptr ? names.root : peer ? "peer" : "root";
  if (peer && call.tag < 0) wrong("tag", "0 or more", to_string(call.tag));
  if (call.root == kAnyRank && call.op == Op::recv) {
    if (size == 1) wrong(name, "a group with another rank to receive from", "one of this rank alone");
    return;
  }
  if (call.root < 0 || call.root >= size)
    wrong(name, "a rank of the group (0 to " + to_string(size - 1) + " in group ranks)", to_string(call.root));
  if (peer && call.root == rank) wrong(name, "another rank than this one", to_string(call.root));
}

// The sides that hold one block per rank here: on a rooted op, only the root has such a side.
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

void check_uniform(const Call& call, const OpRow& op, const Names& names, int rank, int size) {
  const auto [in_blocks, out_blocks] = sides(call, op, rank);
  const auto blocks = [&](const char* argument, const Buffer& whole, int64_t block) {
    if (whole.count == block * size) return;
    wrong(argument, elements(block * size) + " (" + to_string(size) + " ranks x " + to_string(block) + ")",
          to_string(whole.count));
  };
  if (op.extent == Extent::Exchange) {
    if (call.in.count != call.out.count)
      wrong(names.out, "as many elements as " + std::string(names.in) + " (" + to_string(call.in.count) + ")",
            to_string(call.out.count));
    if (call.in.count % size != 0)
      wrong(names.in, "a multiple of " + to_string(size) + " elements (one block per rank)", to_string(call.in.count));
  } else if (out_blocks) {
    blocks(names.out, call.out, call.in.count);
  } else if (in_blocks) {
    blocks(names.in, call.in, call.out.count);
  }
}

// A side of a vectored call with one block per rank.
struct Blocks {
  const char* tensor;
  const char* counts_name;
  const char* displs_name;
  int64_t extent;  // elements of the tensor
  std::span<const int64_t> counts;
};

void check_counts(const Blocks& side, int size) {
  if (std::cmp_not_equal(side.counts.size(), size))
    wrong(side.counts_name, to_string(size) + " entries (one per rank)", to_string(side.counts.size()));
  for (const auto count : side.counts) {
    if (count < 0) wrong(side.counts_name, "0 or more elements", to_string(count));
  }
}

// Checks contiguous blocks.
void check_sum(const Blocks& side) {
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  int64_t sum = 0;
  for (const auto count : side.counts) sum += std::min(count, kMost - sum);
  if (sum > side.extent)
    wrong(side.tensor, elements(sum) + " (the sum of " + side.counts_name + ")", to_string(side.extent));
}

void check_displacements(const Blocks& side, std::span<const int64_t> displs) {
  if (displs.size() != side.counts.size())
    wrong(side.displs_name, to_string(side.counts.size()) + " entries (one per rank)", to_string(displs.size()));
  for (std::size_t i = 0; i < displs.size(); ++i) {
    if (displs[i] >= 0 && side.counts[i] <= side.extent - displs[i]) continue;
    wrong(side.displs_name, "blocks inside the " + elements(side.extent) + " of " + side.tensor,
          "block " + to_string(i) + " from " + to_string(displs[i]) + " with " + elements(side.counts[i]));
  }
}

void check_disjoint(const Blocks& side, std::span<const int64_t> displs) {
  std::vector<std::size_t> order(displs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return displs[a] < displs[b]; });
  int64_t end = 0;
  std::size_t last = 0;
  for (const auto i : order) {
    if (side.counts[i] == 0) continue;
    if (displs[i] < end)
      wrong(side.displs_name, "blocks that do not overlap",
            "blocks " + to_string(last) + " and " + to_string(i) + " overlapping");
    end = displs[i] + side.counts[i];
    last = i;
  }
}

// The rank's own block: the tensor of the other side must have exactly its size.
void check_own(const char* tensor, const char* counts_name, std::span<const int64_t> counts, int rank, int64_t extent) {
  const auto mine = static_cast<std::size_t>(rank);
  if (counts.size() <= mine || counts[mine] == extent) return;
  wrong(tensor, elements(counts[mine]) + " (this rank's entry of " + counts_name + ")", to_string(extent));
}

// The block that a rank gives to itself has a count on both sides.
void check_kept(const Call& call, const Names& names, int rank) {
  const auto mine = static_cast<std::size_t>(rank);
  if (call.in_counts[mine] == call.out_counts[mine]) return;
  wrong(names.out_counts,
        elements(call.in_counts[mine]) + " from this rank itself (its entry of " + names.in_counts + ")",
        to_string(call.out_counts[mine]));
}

void check_vectored(Call& call, const OpRow& op, Extras& extras, int rank, int size) {
  const Names& names = *extras.names;
  const auto [in_blocks, out_blocks] = sides(call, op, rank);
  const auto check = [&](const Blocks& side, std::span<const int64_t>& displs) {
    check_counts(side, size);
    if (!displs.empty()) return check_displacements(side, displs);
    check_sum(side);
    displs = extras.keep_packed(side.counts);
  };
  // A side with a single block has no counts. Clear unchecked counts: they must not be used.
  if (in_blocks) {
    check({names.in, names.in_counts, names.in_displs, call.in.count, call.in_counts}, call.in_displs);
  } else {
    call.in_counts = call.in_displs = {};
  }
  if (out_blocks) {
    const Blocks side{names.out, names.out_counts, names.out_displs, call.out.count, call.out_counts};
    check(side, call.out_displs);
    check_disjoint(side, call.out_displs);
  } else {
    call.out_counts = call.out_displs = {};
  }
  if (op.extent == Extent::Gather) check_own(names.in, names.out_counts, call.out_counts, rank, call.in.count);
  if (op.extent == Extent::Scatter) check_own(names.out, names.in_counts, call.in_counts, rank, call.out.count);
  if (op.extent == Extent::Exchange) check_kept(call, names, rank);
}

// As in MPI, the root's side is ignored on the other ranks. It is unchecked there and must not be used.
void drop_insignificant(Call& call, const OpRow& op, int rank) {
  if (!op.is(kRooted) || call.root == rank) return;
  if (op.extent == Extent::Gather) {
    call.out = {};
  } else if (op.extent == Extent::Scatter) {
    call.in = {};
  }
}

}  // namespace

void validate(Call& call, Extras& extras, int rank, int size) {
  const OpRow& op = row(call.op);
  if (op.is(kReduces)) check_reduction(call);
  if (op.is(kRooted) || op.is(kPeer)) check_root(call, op, *extras.names, rank, size);
  drop_insignificant(call, op, rank);
  if (call.vectored) {
    check_vectored(call, op, extras, rank, size);
  } else if (op.extent != Extent::None && op.extent != Extent::Same) {
    check_uniform(call, op, *extras.names, rank, size);
  }
}

}  // namespace mcr
