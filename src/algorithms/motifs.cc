// SPDX-License-Identifier: Apache-2.0
#include "algorithms/motifs.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "algorithms/messages.h"
#include "algorithms/pieces.h"
#include "base/error.h"
#include "base/reduce.h"
#include "base/text.h"

namespace mcr {

namespace {

using Kind = MotifForm::Kind;

// `first`: the index of its first motif.
void ring(const Call& call, int size, uint8_t first, Schedule& schedule) {
  const int64_t count = call.out.count, block = (count + size - 1) / size;
  Buffer all = call.out;
  Schedule::Ids copied;
  if (block * size != count) {
    all = schedule.buffer(block * size, call.dtype);
    const auto pad = [all, from = call.out, dtype = call.dtype](Schedule&) {
      const auto bytes = static_cast<std::size_t>(from.count * size_of(dtype));
      auto* to = static_cast<std::byte*>(all.data);
      std::memcpy(to, from.data, bytes);
      std::memset(to + bytes, 0, static_cast<std::size_t>(all.count * size_of(dtype)) - bytes);
    };
    copied = {schedule.copy_by(all, call.out, call.dtype, pad)};
  }
  const Buffer own = schedule.buffer(block, call.dtype);
  const auto reduced = schedule.issue(step_of(call, Op::reduce_scatter, all, own), schedule.late_after(copied), first);
  const auto last = static_cast<uint8_t>(first + 1);
  const auto gathered = schedule.issue(step_of(call, Op::all_gather, own, all), {reduced}, last);
  if (all.data != call.out.data) schedule.copy(call.out, {all.data, count}, call.dtype, {gathered});
}

void rings(const Call& call, int size, int parts, Schedule& schedule) {
  for (int index = 0; index < parts; ++index) {
    const auto [begin, count] = part_of(call.out.count, index, parts);
    Call part = call;
    part.out = slice(call.out, call.dtype, begin, count);
    ring(part, size, static_cast<uint8_t>(2 * index), schedule);
  }
}

int levels_of(int size, int fan_in) {
  int levels = 0;
  for (int64_t stride = 1; stride < size; stride *= fan_in) ++levels;
  return levels;
}

// On level l, of the ranks that are multiples of fan_in^l, those that are no multiples of fan_in^(l + 1) send to the
// next lower one that is. The result goes the same ways back.
class Tree {
 public:
  Tree(const Call& call, int rank, int size, int fan_in, Schedule& schedule)
      : call_(call), rank_(rank), size_(size), fan_in_(fan_in), schedule_(schedule) {}

  void build() {
    const int levels = levels_of(size_, fan_in_);
    int64_t stride = 1;
    for (int level = 0; level < levels; ++level, stride *= fan_in_) up(stride, level);
    if (call_.red == RedOp::AVG && rank_ == 0) average();
    for (int level = levels; level < 2 * levels; ++level) down(stride /= fan_in_, level);
  }

 private:
  int64_t root_of(int64_t stride) const { return rank_ - rank_ % (stride * fan_in_); }

  template <class Visit>  // visit(rank)
  void each_child(int64_t stride, const Visit& visit) const {
    const auto end = std::min<int64_t>(size_, rank_ + stride * fan_in_);
    for (int64_t child = rank_ + stride; child < end; child += stride) visit(static_cast<int>(child));
  }

  Schedule::Ids message(Op op, int64_t peer, const Buffer& buffer, const Schedule::Ids& after, int motif) {
    Schedule::Ids ids;
    each_message(op, static_cast<int>(peer), buffer, call_.dtype, call_.timeout, [&](const Call& piece) {
      ids.push_back(schedule_.issue(piece, schedule_.late_after(after), static_cast<uint8_t>(motif)));
    });
    return ids;
  }

  void up(int64_t stride, int motif) {
    if (rank_ % stride != 0) return;
    if (root_of(stride) != rank_) {
      ready_ = message(Op::send, root_of(stride), call_.out, ready_, motif);
      return;
    }
    const auto red = call_.red == RedOp::AVG ? RedOp::SUM : call_.red;
    std::vector<std::pair<Buffer, Schedule::Ids>> got;  // all are posted before the first one is combined
    each_child(stride, [&](int child) {
      const Buffer theirs = schedule_.buffer(call_.out.count, call_.dtype);
      got.emplace_back(theirs, message(Op::recv, child, theirs, {}, motif));
    });
    for (auto& [theirs, ids] : got) {
      ids.insert(ids.end(), ready_.begin(), ready_.end());
      ready_ = {schedule_.combine(call_.out, theirs, call_.dtype, red, ids)};
    }
  }

  void average() {
    const auto divided = [out = call_.out, dtype = call_.dtype, size = size_](Schedule&) {
      divide(out.data, out.count, dtype, size);
    };
    ready_ = {schedule_.copy_by(call_.out, call_.out, call_.dtype, divided, ready_)};
  }

  void down(int64_t stride, int motif) {
    if (rank_ % stride != 0) return;
    if (root_of(stride) != rank_) {
      ready_ = message(Op::recv, root_of(stride), call_.out, ready_, motif);
    } else {
      each_child(stride, [&](int child) { message(Op::send, child, call_.out, ready_, motif); });
    }
  }

  const Call& call_;
  const int rank_, size_, fan_in_;
  Schedule& schedule_;
  Schedule::Ids ready_;  // after these, the tensor may be read and written
};

// In motif c, rank i sends to the ranks from i + c parts on, so that no rank receives from more than `parts` ranks.
void spline(const Call& call, int rank, int size, int parts, Schedule& schedule) {
  const int64_t block = block_elements(call, size);
  const auto displs = schedule.keep(contiguous(std::vector<int64_t>(static_cast<std::size_t>(size), block)));
  for (int first = 0; first < size; first += parts) {
    std::vector<int64_t> in_counts(static_cast<std::size_t>(size)), out_counts(in_counts);
    for (int shift = first; shift < std::min(first + parts, size); ++shift) {
      in_counts[static_cast<std::size_t>((rank + shift) % size)] = block;
      out_counts[static_cast<std::size_t>((rank - shift + size) % size)] = block;
    }
    Call one = step_of(call, Op::all_to_all, call.in, call.out);
    one.vectored = true;
    one.in_counts = schedule.keep(std::move(in_counts)), one.in_displs = displs;
    one.out_counts = schedule.keep(std::move(out_counts)), one.out_displs = displs;
    schedule.issue(one, schedule.late_after({}), static_cast<uint8_t>(first / parts));
  }
}

}  // namespace

MotifForm MotifForm::parse(std::string_view text) {
  if (text == "whole") return {};
  if (text == "ring") return {Kind::Ring, 1};
  constexpr std::string_view kRing = ", ring";
  for (const auto& [prefix, suffix, kind, least] :
       {std::tuple("segment ", kRing, Kind::Ring, 2), std::tuple("segment ", std::string_view(), Kind::Segment, 2),
        std::tuple("tree ", std::string_view(), Kind::Tree, 2),
        std::tuple("spline ", std::string_view(), Kind::Spline, 1)}) {
    if (!text.starts_with(prefix) || !text.ends_with(suffix)) continue;
    const auto number =
        text.substr(std::string_view(prefix).size(), text.size() - suffix.size() - std::string_view(prefix).size());
    const auto parts = whole_number(number);
    if (parts && *parts >= least && std::in_range<int32_t>(*parts)) return {kind, static_cast<int32_t>(*parts)};
  }
  throw Error(ErrorCode::InvalidArgument,
              "expected the form whole, segment K, ring, 'segment K, ring', tree N or spline N, got '" +
                  std::string(text) + "'");
}

bool has_motifs(const Call& call) {
  return row(call.op).is(kCuttable) && !call.vectored && !row(call.op).is(kPeer) &&
         !(row(call.op).is(kReduces) && call.red == RedOp::PREMUL_SUM);
}

int motif_count(const MotifForm& form, const Call& call, int size) {
  if (form.kind == Kind::Whole) return 1;
  if (!has_motifs(call)) return 0;
  const auto parts = static_cast<int>(std::min<int64_t>(form.parts, block_elements(call, size)));
  const bool reduces = call.op == Op::all_reduce && size > 1;
  switch (form.kind) {
    case Kind::Segment:
      return parts < 2 ? 0 : parts;
    case Kind::Ring:
      return reduces && (parts > 1 || form.parts == 1) ? 2 * parts : 0;
    case Kind::Tree:
      return reduces ? 2 * levels_of(size, form.parts) : 0;
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
        const auto segment = [&](int64_t block) { return part_of(block, index, count); };
        issue_part(call, size, {segment, static_cast<uint8_t>(index), true, true}, schedule);
      }
      return;
    case Kind::Ring:
      return rings(call, size, count / 2, schedule);
    case Kind::Tree:
      return Tree(call, rank, size, form.parts, schedule).build();
    case Kind::Spline:
      return spline(call, rank, size, form.parts, schedule);
  }
}

}  // namespace mcr
