// SPDX-License-Identifier: Apache-2.0
#include "algorithms/motifs.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "algorithms/pieces.h"
#include "base/error.h"

namespace mcr {

namespace {

using Kind = MotifForm::Kind;

// The elements of the tensor, or of each rank's block.
int64_t block_of(const Call& call, int size) {
  switch (row(call.op).extent) {
    case Extent::Gather:
      return call.in.count;
    case Extent::Scatter:
      return call.out.count;
    case Extent::Exchange:
      return call.in.count / size;
    default:
      return call.out.count;
  }
}

struct Segment {
  int64_t index, parts;
};

// Parts whose lengths differ by one at most; the first ones are longer.
Span span_of(int64_t count, const void* given) {
  const auto& [index, parts] = *static_cast<const Segment*>(given);
  const int64_t whole = count / parts, rest = count % parts;
  return {index * whole + std::min(index, rest), whole + (index < rest ? 1 : 0)};
}

void ring(const Call& call, int size, Schedule& schedule) {
  const int64_t count = call.out.count, block = (count + size - 1) / size;
  Buffer all = call.out;
  Schedule::Ids copied;
  if (block * size != count) {
    all = {schedule.scratch(block * size * size_of(call.dtype)), block * size};
    const auto pad = [all, from = call.out, dtype = call.dtype](Schedule&) {
      const auto bytes = static_cast<std::size_t>(from.count * size_of(dtype));
      auto* to = static_cast<std::byte*>(all.data);
      std::memcpy(to, from.data, bytes);
      std::memset(to + bytes, 0, static_cast<std::size_t>(all.count * size_of(dtype)) - bytes);
    };
    copied = {schedule.copy_by(all, call.out, call.dtype, pad)};
  }
  const Buffer own{schedule.scratch(block * size_of(call.dtype)), block};
  const auto reduced = schedule.issue(step_of(call, Op::reduce_scatter, all, own), schedule.late_after(copied), 0);
  const auto gathered = schedule.issue(step_of(call, Op::all_gather, own, all), {reduced}, 1);
  if (all.data != call.out.data) schedule.copy(call.out, {all.data, count}, call.dtype, {gathered});
}

// In motif c, rank i sends to the ranks from i + c parts on, so that no rank receives from more than `parts` ranks.
void spline(const Call& call, int rank, int size, int parts, Schedule& schedule) {
  struct Lists {
    std::vector<int64_t> in_counts, out_counts, displs;
  };
  const int64_t block = block_of(call, size);
  for (int first = 0; first < size; first += parts) {
    auto& lists = schedule.make_object<Lists>();
    lists.in_counts.resize(static_cast<std::size_t>(size));
    lists.out_counts.resize(static_cast<std::size_t>(size));
    for (int other = 0; other < size; ++other) lists.displs.push_back(other * block);
    for (int shift = first; shift < std::min(first + parts, size); ++shift) {
      lists.in_counts[static_cast<std::size_t>((rank + shift) % size)] = block;
      lists.out_counts[static_cast<std::size_t>((rank - shift + size) % size)] = block;
    }
    Call one = step_of(call, Op::all_to_all, call.in, call.out);
    one.vectored = true;
    one.in_counts = lists.in_counts, one.in_displs = lists.displs;
    one.out_counts = lists.out_counts, one.out_displs = lists.displs;
    schedule.issue(one, schedule.late_after({}), static_cast<uint8_t>(first / parts));
  }
}

}  // namespace

MotifForm MotifForm::parse(std::string_view text) {
  if (text == "whole") return {};
  if (text == "ring") return {Kind::Ring, 2};
  for (const auto& [prefix, kind, least] :
       {std::tuple("segment ", Kind::Segment, 2), std::tuple("spline ", Kind::Spline, 1)}) {
    if (!text.starts_with(prefix)) continue;
    const auto number = text.substr(std::string_view(prefix).size());
    int32_t parts = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), parts);
    if (error == std::errc() && end == number.data() + number.size() && parts >= least) return {kind, parts};
  }
  throw Error(ErrorCode::InvalidArgument,
              "expected the form whole, segment K, ring or spline N, got '" + std::string(text) + "'");
}

bool has_motifs(const Call& call) {
  return row(call.op).is(kCuttable) && !call.vectored && !row(call.op).is(kPeer) &&
         !(row(call.op).is(kReduces) && call.red == RedOp::PREMUL_SUM);
}

int motif_count(const MotifForm& form, const Call& call, int size) {
  if (form.kind == Kind::Whole) return 1;
  if (!has_motifs(call)) return 0;
  switch (form.kind) {
    case Kind::Segment: {
      const auto parts = std::min<int64_t>(form.parts, block_of(call, size));
      return parts < 2 ? 0 : static_cast<int>(parts);
    }
    case Kind::Ring:
      return call.op == Op::all_reduce && size > 1 ? 2 : 0;
    default:
      return call.op == Op::all_to_all && size > form.parts ? (size + form.parts - 1) / form.parts : 0;
  }
}

void motifs(const Call& call, int rank, int size, const MotifForm& form, Schedule& schedule) {
  const int count = motif_count(form, call, size);
  if (count < 1 || count > MotifForm::kMost) {
    throw Error(ErrorCode::InvalidArgument, "expected a form of 1 to " + std::to_string(MotifForm::kMost) +
                                                " motifs that " + std::string(row(call.op).name) + " has, got " +
                                                std::to_string(count) + " motifs");
  }
  switch (form.kind) {
    case Kind::Whole: {
      Call whole = call;
      whole.variant = 0;
      schedule.issue(whole, schedule.late_after({}), 0);
      return;
    }
    case Kind::Segment:
      for (int index = 0; index < count; ++index) {
        const Segment segment{index, count};
        issue_part(call, size, {span_of, &segment, static_cast<uint8_t>(index), true, true}, schedule);
      }
      return;
    case Kind::Ring:
      return ring(call, size, schedule);
    case Kind::Spline:
      return spline(call, rank, size, form.parts, schedule);
  }
}

}  // namespace mcr
