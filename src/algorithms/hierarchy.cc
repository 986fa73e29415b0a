// SPDX-License-Identifier: Apache-2.0
#include "algorithms/hierarchy.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "algorithms/pieces.h"
#include "base/error.h"

namespace mcr {

namespace {

constexpr int64_t kLeastSplit = 16 * 1024;    // bytes: below this, three messages cost more than they save
constexpr int64_t kChunk = int64_t{4} << 20;  // bytes of a chunk
constexpr int64_t kMostChunks = 8;

using Ids = Schedule::Ids;
using Part = Lines::Part;

struct Move {
  std::byte* to;
  const std::byte* from;
  int64_t bytes;
};

// Builds the schedule of one rank. Blocks "in line order" are those of the first line's ranks, of the second's, ...
class Hierarchy {
 public:
  Hierarchy(const Call& call, int rank, const Lines& lines, Schedule& schedule)
      : call_(call),
        lines_(lines),
        schedule_(schedule),
        line_(lines.line_of(rank)),
        index_(lines.index_of(rank)),
        root_line_(lines.line_of(root_of(call))),
        root_index_(lines.index_of(root_of(call))),
        leader_(lines.even() ? root_index_ : 0) {}

  void build() {
    if (row(call_.op).extent == Extent::Same) return split_and_tree();
    switch (call_.op) {
      case Op::all_gather:
        return lines_.even() ? all_gather_even() : all_gather_uneven();
      case Op::reduce_scatter:
        return lines_.even() ? reduce_scatter_even() : reduce_scatter_uneven();
      case Op::all_to_all:
        return lines_.even() ? all_to_all_even() : all_to_all_uneven();
      case Op::gather:
        return gather();
      case Op::scatter:
        return scatter();
      case Op::barrier:
        return barrier();
      default:
        throw Error(ErrorCode::Unsupported, std::string(row(call_.op).name) + ": no hierarchical form");
    }
  }

 private:
  static int root_of(const Call& call) { return row(call.op).is(kRooted) ? call.root : 0; }

  int64_t bytes(int64_t count) const { return count * size_of(call_.dtype); }
  Buffer part(const Buffer& whole, int64_t offset, int64_t count) const {
    return slice(whole, call_.dtype, offset, count);
  }
  Buffer scratch(int64_t count) { return schedule_.buffer(count, call_.dtype); }

  int length() const { return length(line_); }
  int length(int line) const { return static_cast<int>(lines_.all()[static_cast<std::size_t>(line)].size()); }
  int height() const { return static_cast<int>(lines_.all().size()); }
  int rank_at(int line, int index) const {
    return lines_.all()[static_cast<std::size_t>(line)][static_cast<std::size_t>(index)];
  }
  bool leads() const { return index_ == leader_; }
  bool with_root() const { return line_ == root_line_; }
  bool is_root() const { return with_root() && index_ == root_index_; }
  // The root does not communicate with the other lines: data move between it and its line's leader.
  bool detour() const { return with_root() && root_index_ != leader_; }

  // ---- tasks

  Ids issue(const Call& call, Part part, const Ids& after) {
    return {schedule_.issue(call, part == Part::kFirst ? after : schedule_.late_after(after), part)};
  }

  // In the rank's line. A line of one rank has no communicator.
  Ids within(Part part, Op op, Buffer in, Buffer out, int root, const Ids& after) {
    if (length() > 1) return issue(step_of(call_, op, in, out, root), part, after);
    if (in.data == nullptr) return after;
    return {schedule_.copy(out, in, call_.dtype, after)};
  }
  Ids within(Part part, Op op, Buffer data, int root, const Ids& after) {
    return within(part, op, {}, data, root, after);
  }
  Ids across(Op op, Buffer in, Buffer out, const Ids& after) {
    return issue(step_of(call_, op, in, out, root_line_), Part::kOuter, after);
  }

  // On uneven lines with blocks of these sizes on the sides that have one block per line.
  Ids across(Op op, Buffer in, std::vector<int64_t> in_counts, Buffer out, std::vector<int64_t> out_counts,
             const Ids& after) {
    if (lines_.even()) return across(op, in, out, after);
    auto call = step_of(call_, op, in, out, root_line_);
    call.vectored = true;
    call.in_displs = schedule_.keep(contiguous(in_counts));
    call.in_counts = schedule_.keep(std::move(in_counts));
    call.out_displs = schedule_.keep(contiguous(out_counts));
    call.out_counts = schedule_.keep(std::move(out_counts));
    return issue(call, Part::kOuter, after);
  }

  // Elements of each line, for blocks of `count` elements per rank.
  std::vector<int64_t> of_lines(int64_t count) const {
    std::vector<int64_t> counts;
    for (int line = 0; line < height(); ++line) counts.push_back(length(line) * count);
    return counts;
  }

  Move move(const Buffer& to, int64_t to_block, const Buffer& from, int64_t from_block, int64_t count) const {
    return {at(to.data, to_block * count, call_.dtype), at(from.data, from_block * count, call_.dtype), bytes(count)};
  }

  // Several copies as one task.
  Ids copies(const std::vector<Move>& moves, Buffer to, Buffer from, const Ids& after) {
    std::vector<Move> merged;
    for (const auto& one : moves) {
      if (!merged.empty() && merged.back().to + merged.back().bytes == one.to &&
          merged.back().from + merged.back().bytes == one.from) {
        merged.back().bytes += one.bytes;
      } else {
        merged.push_back(one);
      }
    }
    const auto run = [all = std::move(merged)](Schedule&) {
      for (const auto& one : all) std::memcpy(one.to, one.from, static_cast<std::size_t>(one.bytes));
    };
    return {schedule_.copy_by(to, from, call_.dtype, run, after)};
  }

  // Calls visit(line, index, place in line order) for each rank.
  template <class Visit>
  void each(const Visit& visit) const {
    int64_t place = 0;
    for (int line = 0; line < height(); ++line) {
      for (int index = 0; index < length(line); ++index) visit(line, index, place++);
    }
  }

  bool in_line_order() const {
    bool same = true;
    each([&](int line, int index, int64_t place) { same = same && rank_at(line, index) == place; });
    return same;
  }

  // The blocks of a buffer with one per rank, in line order; in the caller's memory if they are.
  std::pair<Buffer, Ids> to_line_order(const Buffer& given, int64_t count) {
    if (in_line_order()) return {given, {}};
    const Buffer ordered = scratch(given.count);
    std::vector<Move> moves;
    each([&](int line, int index, int64_t place) {
      moves.push_back(move(ordered, place, given, rank_at(line, index), count));
    });
    return {ordered, copies(moves, ordered, given, {})};
  }
  // Memory for blocks in line order that from_line_order() then moves to `result`.
  Buffer for_line_order(const Buffer& result) { return in_line_order() ? result : scratch(result.count); }
  void from_line_order(const Buffer& ordered, const Buffer& result, int64_t count, const Ids& after) {
    if (ordered.data == result.data) return;
    std::vector<Move> moves;
    each([&](int line, int index, int64_t place) {
      moves.push_back(move(result, rank_at(line, index), ordered, place, count));
    });
    copies(moves, result, ordered, after);
  }

  // ---- broadcast, all_reduce, reduce

  void split_and_tree() {
    const int64_t count = call_.out.count, width = length();
    int64_t split = 0;
    if (lines_.even() && bytes(count) >= kLeastSplit) split = count / width * width;
    const int64_t chunks = std::clamp<int64_t>(bytes(split) / kChunk, 1, kMostChunks);
    std::vector<Buffer> pieces;
    for (int64_t i = 0; i < chunks && split != 0; ++i) {
      const auto [begin, each] = part_of(split / width, i, chunks);
      pieces.push_back(part(call_.out, begin * width, each * width));
    }
    const Buffer rest = part(call_.out, split, count - split);
    // First the Issues that wait for nothing, so that all chunks are under way.
    std::vector<Buffer> shards;
    std::vector<Ids> begun;
    for (const auto& piece : pieces) {
      shards.push_back(shard_of(piece));
      begun.push_back(begin_split(piece, shards.back()));
    }
    Buffer work = rest;
    const Ids tree = rest.count == 0 ? Ids() : begin_tree(work);
    for (std::size_t i = 0; i < pieces.size(); ++i) end_split(pieces[i], shards[i], begun[i]);
    if (rest.count != 0) end_tree(rest, work, tree);
  }

  // A broadcast must not write to the root's data, which may be read-only: its line ends with the first phase, so that
  // no all_gather returns the data to the root.
  bool has_all() const { return call_.op == Op::broadcast && with_root(); }
  Buffer shard_of(const Buffer& piece) {
    const int64_t count = piece.count / length();
    return has_all() ? part(piece, index_ * count, count) : scratch(count);
  }

  // The line's reduction of this rank's shard, or the root's data.
  Ids begin_split(const Buffer& piece, const Buffer& shard) {
    if (call_.op != Op::broadcast) return within(Part::kFirst, Op::reduce_scatter, piece, shard, 0, {});
    return has_all() ? within(Part::kFirst, Op::broadcast, piece, root_index_, {}) : Ids();
  }
  void end_split(const Buffer& piece, const Buffer& shard, const Ids& begun) {
    const Ids after = across(call_.op, {}, shard, begun);
    if (has_all()) return;
    if (call_.op != Op::reduce) {
      within(Part::kLast, Op::all_gather, shard, piece, 0, after);
    } else if (with_root()) {
      within(Part::kLast, Op::gather, shard, is_root() ? piece : Buffer{}, root_index_, after);
    }
  }

  // `work`: the data; on return where the leader's partial result is.
  Ids begin_tree(Buffer& work) {
    if (call_.op == Op::broadcast) return detour() ? within(Part::kFirst, Op::broadcast, work, root_index_, {}) : Ids();
    Ids after;
    if (call_.op == Op::reduce && leads() && !is_root()) {  // its own data must not change
      const Buffer own = std::exchange(work, scratch(work.count));
      after = {schedule_.copy(work, own, call_.dtype)};
    }
    return within(Part::kFirst, Op::reduce, work, leader_, after);
  }
  void end_tree(const Buffer& data, const Buffer& work, Ids after) {
    if (leads()) after = across(call_.op, {}, work, after);
    if (call_.op == Op::all_reduce || (call_.op == Op::broadcast && !detour())) {
      within(Part::kLast, Op::broadcast, data, leader_, after);
    } else if (call_.op == Op::reduce && detour()) {
      const Buffer place = leads() ? work : is_root() ? data : scratch(data.count);
      within(Part::kLast, Op::broadcast, place, leader_, after);
    }
  }

  // ---- all_gather, reduce_scatter, all_to_all on even lines

  void all_gather_even() {
    const int64_t count = call_.in.count;
    const Buffer column = scratch(count * height()), all = scratch(count * lines_.size());
    const Ids outer = across(Op::all_gather, call_.in, column, {});
    const Ids after = within(Part::kLast, Op::all_gather, column, all, 0, outer);
    std::vector<Move> moves;
    each([&](int line, int index, int64_t) {
      moves.push_back(move(call_.out, rank_at(line, index), all, index * height() + line, count));
    });
    copies(moves, call_.out, all, after);
  }

  // The blocks of the input, those for the line's first ranks before those for its second ranks, ...
  std::pair<Buffer, Ids> by_columns(int64_t count) {
    const Buffer columns = scratch(call_.in.count);
    std::vector<Move> moves;
    each([&](int line, int index, int64_t) {
      moves.push_back(move(columns, index * height() + line, call_.in, rank_at(line, index), count));
    });
    return {columns, copies(moves, columns, call_.in, {})};
  }

  void reduce_scatter_even() {
    const int64_t count = call_.out.count;
    const auto [columns, packed] = by_columns(count);
    const Buffer column = scratch(count * height());
    const Ids after = within(Part::kFirst, Op::reduce_scatter, columns, column, 0, packed);
    across(Op::reduce_scatter, column, call_.out, after);
  }

  void all_to_all_even() {
    const int64_t count = call_.in.count / lines_.size();
    const auto [columns, packed] = by_columns(count);
    const Buffer met = scratch(call_.in.count), sent = scratch(call_.in.count), got = scratch(call_.in.count);
    const Ids first = within(Part::kFirst, Op::all_to_all, columns, met, 0, packed);
    std::vector<Move> moves;
    each([&](int line, int index, int64_t place) {
      moves.push_back(move(sent, place, met, index * height() + line, count));
    });
    const Ids after = across(Op::all_to_all, sent, got, copies(moves, sent, met, first));
    moves.clear();
    each([&](int line, int index, int64_t place) {
      moves.push_back(move(call_.out, rank_at(line, index), got, place, count));
    });
    copies(moves, call_.out, got, after);
  }

  // ---- all_gather, reduce_scatter, all_to_all on uneven lines: one rank of each line communicates for all

  void all_gather_uneven() {
    const int64_t count = call_.in.count;
    const Buffer mine = leads() ? scratch(count * length()) : Buffer{};
    const Buffer all = for_line_order(call_.out);
    Ids after = within(Part::kFirst, Op::gather, call_.in, mine, leader_, {});
    if (leads()) after = across(Op::all_gather, mine, {}, all, of_lines(count), after);
    after = within(Part::kLast, Op::broadcast, all, leader_, after);
    from_line_order(all, call_.out, count, after);
  }

  void reduce_scatter_uneven() {
    const int64_t count = call_.out.count;
    auto [all, after] = to_line_order(call_.in, count);
    if (leads() && all.data == call_.in.data) {  // the input must not change
      all = scratch(call_.in.count);
      after = {schedule_.copy(all, call_.in, call_.dtype)};
    }
    const Buffer mine = leads() ? scratch(count * length()) : Buffer{};
    after = within(Part::kFirst, Op::reduce, all, leader_, after);
    if (leads()) after = across(Op::reduce_scatter, all, of_lines(count), mine, {}, after);
    within(Part::kLast, Op::scatter, mine, call_.out, leader_, after);
  }

  void all_to_all_uneven() {
    const int64_t count = call_.in.count / lines_.size(), whole = call_.in.count;
    const auto [ordered, packed] = to_line_order(call_.in, count);
    const Buffer result = for_line_order(call_.out);
    const Buffer met = leads() ? scratch(whole * length()) : Buffer{};
    const Buffer parted = leads() ? scratch(whole * length()) : Buffer{};
    Ids after = within(Part::kFirst, Op::gather, ordered, met, leader_, packed);
    if (leads()) after = exchange_lines(met, parted, count, after);
    after = within(Part::kLast, Op::scatter, parted, result, leader_, after);
    from_line_order(result, call_.out, count, after);
  }

  // `met` has the inputs of the line's ranks one after the other; `parted` gets their outputs. Between two lines go the
  // blocks by sender, then receiver.
  Ids exchange_lines(const Buffer& met, const Buffer& parted, int64_t count, const Ids& after) {
    const Buffer sent = scratch(met.count), got = scratch(met.count);
    const int64_t mine = length();
    std::vector<Move> packs, unpacks;
    int64_t before = 0;  // ranks of the lines so far
    for (int line = 0; line < height(); ++line) {
      const int64_t theirs = length(line);
      for (int64_t own = 0; own < mine; ++own) {
        for (int64_t other = 0; other < theirs; ++other) {
          packs.push_back(
              move(sent, before * mine + own * theirs + other, met, own * lines_.size() + before + other, count));
          unpacks.push_back(
              move(parted, own * lines_.size() + before + other, got, before * mine + other * mine + own, count));
        }
      }
      before += theirs;
    }
    const auto counts = of_lines(count * mine);
    const Ids outer = across(Op::all_to_all, sent, counts, got, counts, copies(packs, sent, met, after));
    return copies(unpacks, parted, got, outer);
  }

  // ---- gather, scatter, barrier

  void gather() {
    const int64_t count = call_.in.count, whole = count * lines_.size();
    const bool collects = leads() && with_root();
    const Buffer mine = leads() ? scratch(count * length()) : Buffer{};
    Buffer all;
    if (is_root()) {
      all = for_line_order(call_.out);
    } else if (collects || detour()) {
      all = scratch(whole);
    }
    Ids after = within(Part::kFirst, Op::gather, call_.in, mine, leader_, {});
    if (leads()) {
      const Buffer to = collects ? all : Buffer{};
      after = across(Op::gather, mine, {}, to, collects ? of_lines(count) : std::vector<int64_t>(), after);
    }
    if (detour()) after = within(Part::kLast, Op::broadcast, all, leader_, after);
    if (is_root()) from_line_order(all, call_.out, count, after);
  }

  void scatter() {
    const int64_t count = call_.out.count, whole = count * lines_.size();
    const bool spreads = leads() && with_root();
    Buffer all;
    Ids after;
    if (is_root()) {
      std::tie(all, after) = to_line_order(call_.in, count);
    } else if (detour()) {
      all = scratch(whole);
    }
    if (detour()) after = within(Part::kFirst, Op::broadcast, all, root_index_, after);
    const Buffer mine = leads() ? scratch(count * length()) : Buffer{};
    if (leads()) {
      const Buffer from = spreads ? all : Buffer{};
      after = across(Op::scatter, from, spreads ? of_lines(count) : std::vector<int64_t>(), mine, {}, after);
    }
    within(Part::kLast, Op::scatter, mine, call_.out, leader_, after);
  }

  void barrier() {
    Ids after = within(Part::kFirst, Op::barrier, {}, 0, {});
    if (lines_.even() || leads()) after = across(Op::barrier, {}, {}, after);
    if (!lines_.even()) within(Part::kLast, Op::barrier, {}, 0, after);
  }

  const Call& call_;
  const Lines& lines_;
  Schedule& schedule_;
  const int line_, index_;  // this rank's
  const int root_line_, root_index_;
  const int leader_;  // the index of the rank that communicates for its line
};

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorCode::InvalidArgument, "lines: " + text); }

}  // namespace

Lines::Lines(std::vector<std::vector<int>> lines) : lines_(std::move(lines)), even_(true) {
  std::size_t size = 0, longest = 0;
  for (const auto& line : lines_) {
    size += line.size();
    longest = std::max(longest, line.size());
    even_ = even_ && line.size() == lines_.front().size();
  }
  if (lines_.size() < 2 || longest < 2) {
    refuse("expected two or more, one of them with two or more ranks, got " + std::to_string(lines_.size()) +
           " with at most " + std::to_string(longest));
  }
  of_.resize(size, {-1, -1});
  for (std::size_t line = 0; line < lines_.size(); ++line) {
    if (lines_[line].empty()) refuse("expected ranks in each, got none in line " + std::to_string(line));
    for (std::size_t index = 0; index < lines_[line].size(); ++index) {
      const int rank = lines_[line][index];
      if (std::cmp_greater_equal(rank, size) || rank < 0 || of_[static_cast<std::size_t>(rank)].line >= 0) {
        refuse("expected each rank from 0 to " + std::to_string(size - 1) + " once, got " + std::to_string(rank));
      }
      of_[static_cast<std::size_t>(rank)] = {static_cast<int>(line), static_cast<int>(index)};
    }
  }
}

std::vector<int> Lines::members(int rank, Part part) const {
  if (part != kOuter) return lines_[static_cast<std::size_t>(line_of(rank))];
  if (!even_ && index_of(rank) != 0) return {};
  std::vector<int> found;
  for (const auto& line : lines_) found.push_back(line[static_cast<std::size_t>(index_of(rank))]);
  return found;
}

bool has_hierarchy(const Call& call) {
  return !call.vectored && row(call.op).is(kHierarchical) && reduces_in_steps(call);
}

void hierarchy(const Call& call, int rank, const Lines& lines, Schedule& schedule) {
  Hierarchy(call, rank, lines, schedule).build();
}

}  // namespace mcr
