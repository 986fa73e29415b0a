// SPDX-License-Identifier: Apache-2.0
#include "algorithms/pieces.h"

#include <algorithm>
#include <span>
#include <vector>

namespace mcr {

namespace {

// The blocks of one side of a call: one per rank, or only one.
struct Side {
  struct Block {
    int64_t displacement, count;
  };
  Buffer buffer;
  std::vector<Block> blocks;
  bool uneven = false;  // the call has counts and displacements for this side
  bool single() const { return blocks.size() == 1 && !uneven; }
};

Side side_of(const Buffer& buffer, bool per_rank, std::span<const int64_t> counts, std::span<const int64_t> displs,
             int size) {
  Side side{buffer, {}, per_rank && !counts.empty()};
  if (!per_rank) {
    side.blocks.push_back({0, buffer.count});
  } else if (counts.empty()) {
    const int64_t each = buffer.count / size;
    for (int i = 0; i < size; ++i) side.blocks.push_back({i * each, each});
  } else {
    for (std::size_t i = 0; i < counts.size(); ++i) side.blocks.push_back({displs[i], counts[i]});
  }
  return side;
}

bool has_blocks(Extent extent, Extent one_sided) { return extent == one_sided || extent == Extent::Exchange; }

// The part's pieces of the blocks of a side, in the caller's memory or packed in scratch memory.
class Piece {
 public:
  Piece(const Side& side, DType dtype, const PartOf& part, bool packed, Schedule& schedule)
      : dtype_(dtype), packed_(packed && !side.single()) {
    int64_t total = 0;
    for (const auto& block : side.blocks) {
      const auto [begin, count] = part.of_block(block.count);
      pieces_.push_back({at(side.buffer.data, block.displacement + begin, dtype), count});
      counts_.push_back(count);
      displs_.push_back(packed_ ? total : block.displacement + begin);
      total += count;
    }
    if (packed_) {
      buffer_ = schedule.buffer(total, dtype);
    } else {
      buffer_ = side.single() ? pieces_.front() : side.buffer;
    }
  }

  const Buffer& buffer() const { return buffer_; }
  const std::vector<int64_t>& counts() const { return counts_; }
  const std::vector<int64_t>& displs() const { return displs_; }

  Schedule::Ids gather(Schedule& schedule) const {
    Schedule::Ids ids;
    each([&](Buffer piece, Buffer packed) { ids.push_back(schedule.copy(packed, piece, dtype_)); });
    return ids;
  }
  void spread(Schedule& schedule, Schedule::Id issued) const {
    each([&](Buffer piece, Buffer packed) { schedule.copy(piece, packed, dtype_, {issued}); });
  }

 private:
  template <class Copy>  // copy(piece in the caller's memory, piece in scratch memory)
  void each(Copy copy) const {
    for (std::size_t i = 0; packed_ && i < pieces_.size(); ++i) {
      const auto count = pieces_[i].count;
      if (count != 0) copy(pieces_[i], slice(buffer_, dtype_, displs_[i], count));
    }
  }

  const DType dtype_;
  const bool packed_;
  std::vector<Buffer> pieces_;
  std::vector<int64_t> counts_, displs_;
  Buffer buffer_;
};

}  // namespace

Span part_of(int64_t count, int64_t index, int64_t parts) {
  const int64_t whole = count / parts, rest = count % parts;
  return {index * whole + std::min(index, rest), whole + (index < rest ? 1 : 0)};
}

void issue_part(const Call& call, int size, const PartOf& part, Schedule& schedule) {
  const auto extent = row(call.op).extent;
  const Side in = side_of(call.in, has_blocks(extent, Extent::Scatter), call.in_counts, call.in_displs, size);
  const Side out = side_of(call.out, has_blocks(extent, Extent::Gather), call.out_counts, call.out_displs, size);
  const Piece ins(in, call.dtype, part, part.packed && call.in.data != nullptr, schedule);
  const Piece outs(out, call.dtype, part, part.packed && call.out.data != nullptr, schedule);
  Call one = call;
  one.variant = 0;
  one.in = call.in.data == nullptr ? call.in : ins.buffer();
  one.out = call.out.data == nullptr ? call.out : outs.buffer();
  if (!call.in_counts.empty()) {
    one.in_counts = schedule.keep(ins.counts());
    one.in_displs = schedule.keep(ins.displs());
  }
  if (!call.out_counts.empty()) {
    one.out_counts = schedule.keep(outs.counts());
    one.out_displs = schedule.keep(outs.displs());
  }
  const auto gathered = ins.gather(schedule);
  const auto issued = schedule.issue(one, part.late ? schedule.late_after(gathered) : gathered, part.index);
  outs.spread(schedule, issued);
}

}  // namespace mcr
