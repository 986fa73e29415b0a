// SPDX-License-Identifier: Apache-2.0
#include "algorithms/ordered.h"

#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "algorithms/layout.h"
#include "algorithms/pieces.h"
#include "base/error.h"
#include "base/reduce.h"

namespace mcr {

namespace {

using Ids = Schedule::Ids;
using Order = std::vector<uint8_t>;

// One chunk on its way: the memory of its steps so far, the last one's being the data.
struct Chunk {
  int64_t offset = 0, count = 0;  // elements: of the whole data, or of each block of it
  Order order = {};
  std::vector<Buffer> levels = {};
  Ids after = {};
};

// Builds the schedule of one rank.
class Ordered {
 public:
  Ordered(const Call& call, const Grid& grid, Schedule& schedule)
      : call_(call),
        grid_(grid),
        sizes_(grid.sizes),
        schedule_(schedule),
        ranks_(std::accumulate(sizes_.begin(), sizes_.end(), int64_t{1}, std::multiplies<>())) {}

  void build(const ChunkOrders& given) {
    cut(given.orders);
    for (const auto& [number, index] : given.issues) {
      auto& chunk = chunks_.at(number);
      if (chunk.count != 0) step(chunk, index);
    }
    if (call_.op == Op::all_reduce) finish_rest();
  }

 private:
  Buffer part(const Buffer& whole, int64_t offset, int64_t count) const {
    return slice(whole, call_.dtype, offset, count);
  }
  Buffer scratch(int64_t count) { return schedule_.buffer(count, call_.dtype); }

  // Of an all_reduce in units that all ranks can share, the rest apart; else of each rank's block.
  void cut(const std::vector<Order>& orders) {
    const int64_t whole = call_.op == Op::all_gather ? call_.in.count : call_.out.count;
    const int64_t unit = call_.op == Op::all_reduce ? ranks_ : 1;
    for (std::size_t i = 0; i < orders.size(); ++i) {
      const auto [begin, count] = part_of(whole / unit, static_cast<int64_t>(i), static_cast<int64_t>(orders.size()));
      chunks_.push_back({begin * unit, count * unit, orders[i]});
    }
  }

  void step(Chunk& chunk, std::size_t index) {
    if (chunk.levels.empty()) begin(chunk);
    const std::size_t dimensions = chunk.order.size();
    const bool back = index >= dimensions;
    const auto k = back ? chunk.order[2 * dimensions - 1 - index] : chunk.order[index];
    if (back) {
      const Buffer shard = chunk.levels.back();
      chunk.levels.pop_back();
      issue(chunk, Op::all_gather, k, shard, chunk.levels.back());
    } else if (call_.op == Op::all_gather) {
      const Buffer piece = chunk.levels.back();
      chunk.levels.push_back(scratch(piece.count * sizes_[k]));
      issue(chunk, Op::all_gather, k, piece, chunk.levels.back());
      if (index + 1 == dimensions) unpack(chunk);
    } else {
      const Buffer whole = chunk.levels.back();
      const bool last = call_.op == Op::reduce_scatter && index + 1 == dimensions;
      chunk.levels.push_back(last ? part(call_.out, chunk.offset, chunk.count) : scratch(whole.count / sizes_[k]));
      const bool exchanges = !grid_.exchanges.empty() && grid_.exchanges[k];
      exchanges ? exchange(chunk, k, whole, chunk.levels.back())
                : issue(chunk, Op::reduce_scatter, k, whole, chunk.levels.back());
    }
  }

  void begin(Chunk& chunk) {
    if (call_.op == Op::reduce_scatter) return pack(chunk);
    const Buffer& from = call_.op == Op::all_gather ? call_.in : call_.out;
    chunk.levels.push_back(part(from, chunk.offset, chunk.count));
  }

  void issue(Chunk& chunk, Op op, uint8_t dimension, Buffer in, Buffer out) {
    const auto after = schedule_.late_after(std::move(chunk.after));
    chunk.after = {schedule_.issue(step_of(call_, op, in, out), after, dimension)};
  }

  // A reduce_scatter of which this rank combines its own piece.
  void exchange(Chunk& chunk, uint8_t dimension, Buffer whole, Buffer piece) {
    const Buffer received = scratch(whole.count);
    issue(chunk, Op::all_to_all, dimension, whole, received);
    auto& sources = schedule_.make_object<std::vector<const void*>>();
    for (int i = 0; i < sizes_[dimension]; ++i) sources.push_back(part(received, i * piece.count, piece.count).data);
    const auto run = [&sources, piece, dtype = call_.dtype, red = call_.red](Schedule&) {
      combine_all(piece.data, sources, piece.count, dtype, red);
    };
    chunk.after = {schedule_.copy_by(piece, received, call_.dtype, run, chunk.after)};
  }

  // Copies the chunk's part of each rank's block between a buffer of blocks and one in the order of its places.
  Ids rearrange(const Chunk& chunk, const Order& order, const Buffer& blocks, const Buffer& placed, bool packs) {
    const auto& places = schedule_.make_object<std::vector<int>>(slice_places(sizes_, order));
    const int64_t element = size_of(call_.dtype);
    const int64_t block = blocks.count / ranks_ * element, bytes = chunk.count * element;
    auto* const in_blocks = at(blocks.data, chunk.offset, call_.dtype);
    auto* const in_places = static_cast<std::byte*>(placed.data);
    const auto run = [&places, &ranks = grid_.ranks, in_blocks, in_places, block, bytes, packs](Schedule&) {
      for (std::size_t point = 0; point < places.size(); ++point) {
        const auto rank = ranks.empty() ? static_cast<int64_t>(point) : ranks[point];
        auto* const of_rank = in_blocks + rank * block;
        auto* const place = in_places + places[point] * bytes;
        std::memcpy(packs ? place : of_rank, packs ? of_rank : place, static_cast<std::size_t>(bytes));
      }
    };
    const Buffer size{nullptr, placed.count};  // for the cost model
    return {schedule_.copy_by(packs ? placed : size, packs ? size : placed, call_.dtype, run, chunk.after)};
  }

  void pack(Chunk& chunk) {
    chunk.levels.push_back(scratch(chunk.count * ranks_));
    chunk.after = rearrange(chunk, chunk.order, call_.in, chunk.levels.back(), true);
  }
  void unpack(Chunk& chunk) {
    const Order reversed(chunk.order.rbegin(), chunk.order.rend());
    chunk.after = rearrange(chunk, reversed, call_.out, chunk.levels.back(), false);
  }

  // The elements of an all_reduce that the ranks cannot share equally, filled up with zeros.
  void finish_rest() {
    const int64_t rest = call_.out.count % ranks_;
    if (rest == 0) return;
    const Buffer own = part(call_.out, call_.out.count - rest, rest), filled = scratch(ranks_);
    std::memset(filled.data, 0, static_cast<std::size_t>(ranks_ * size_of(call_.dtype)));
    Chunk chunk{call_.out.count - rest, ranks_, Order(sizes_.size())};
    std::iota(chunk.order.begin(), chunk.order.end(), uint8_t{0});
    chunk.levels.push_back(filled);
    chunk.after = {schedule_.copy(part(filled, 0, rest), own, call_.dtype)};
    for (std::size_t index = 0; index < 2 * sizes_.size(); ++index) step(chunk, index);
    schedule_.copy(own, part(filled, 0, rest), call_.dtype, chunk.after);
  }

  const Call& call_;
  const Grid& grid_;
  const std::span<const int> sizes_;
  Schedule& schedule_;
  const int64_t ranks_;
  std::vector<Chunk> chunks_;
};

}  // namespace

bool has_ordered(Op op) {
  const OpRow& traits = row(op);
  return traits.is(kHierarchical) && traits.is(kCuttable) && !traits.is(kRooted) && traits.extent != Extent::Exchange;
}

bool has_ordered(const Call& call) { return !call.vectored && has_ordered(call.op) && reduces_in_steps(call); }

void ordered(const Call& call, const Grid& grid, const ChunkOrders& chunks, Schedule& schedule) {
  if (!has_ordered(call)) throw Error(ErrorCode::Unsupported, std::string(row(call.op).name) + ": no ordered form");
  Ordered(call, grid, schedule).build(chunks);
}

}  // namespace mcr
