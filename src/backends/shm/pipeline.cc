// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/pipeline.h"

#include <algorithm>

#include "base/reduce.h"

namespace mcr::shm {

namespace {

// A tensor is cut into about this many pieces, unless they would be small: with fewer, the phases do not overlap. On
// processors where pieces may be written past the caches, whole slots are faster, in both ways.
constexpr int64_t kWanted = 4;
constexpr int64_t kLeast = 16 << 10;
// Bytes of a call whose tensors are offered: the end of such a call costs a look at all ranks.
constexpr int64_t kLeastOffer = 32 << 10;
// Bytes of one read of another process's memory, at most.
constexpr int64_t kRead = 512 << 10;

}  // namespace

Pipeline::Pipeline(Segment& segment, History& history, Pieces& pieces, Offers& offers, const PeerMemory& memory,
                   int rank, bool streams)
    : segment_(segment),
      history_(history),
      pieces_(pieces),
      offers_(offers),
      memory_(memory),
      rank_(rank),
      size_(segment.layout().ranks()),
      streams_(streams),
      writing_(segment, rank, streams),
      exchanging_(segment, rank, streams, memory.readable()),
      given_(static_cast<std::size_t>(size_)),
      sources_(static_cast<std::size_t>(size_)) {}

Pipeline::Range Pipeline::range(const Position& position, uint64_t piece, int64_t length) {
  const auto begin = static_cast<int64_t>(piece) * position.piece;
  return {std::min(begin, length), std::min(begin + position.piece, length)};
}

// The part of a piece that one rank combines, counted from the beginning of the piece: whole cache lines.
Pipeline::Range Pipeline::share(const Range& piece, int rank) const {
  const auto length = piece.length();
  const auto each = round_up((length + size_ - 1) / size_, kLine);
  return {std::min(rank * each, length), std::min((rank + 1) * each, length)};
}

void Pipeline::begin(const Blocks& blocks, Position& position) {
  const auto most = segment_.layout().piece();
  const auto wanted = std::max(round_up((blocks.total() + kWanted - 1) / kWanted, kLine), kLeast);
  const auto slot = streams_ ? most : std::min(wanted, most);
  position.piece = blocks.parts() ? std::max(round_down(slot / size_, kLine), kLine) : slot;
  position.pieces = static_cast<uint64_t>((blocks.longest() + position.piece - 1) / position.piece);
  position.first = pieces_.take(position.pieces);
  position.begun = true;
  std::ranges::fill(given_, Given{});
  position.digest = history_.add(blocks);
  position.way = exchanging_.begin(blocks);
  position.offers = lies_in_heap(blocks);
  if (position.offers) position.way.reset();
  if (position.way == Writing::kDirect) position.offers = true;
}

// In place of all copies.
void Pipeline::offer(const Blocks& blocks, Position& position) {
  offers_.make(blocks, position.first, keeps_result(blocks, position) ? blocks.taken(rank_) : nullptr);
  pieces_.own().copied_in.store(position.first + position.pieces, std::memory_order_release);
  position.copied_in = position.pieces;
}

// A rank without a result needs a slot for its part of it, so it gives pieces.
bool Pipeline::lies_in_heap(const Blocks& blocks) const {
  if (!blocks.gives(rank_) || blocks.total() < kLeastOffer) return false;
  if (blocks.reduces() && !blocks.parts() && !blocks.takes(rank_)) return false;
  if (!blocks.parts()) return memory_.shared(blocks.given(rank_), blocks.length(rank_));
  for (int peer = 0; peer < size_; ++peer) {
    if (!memory_.shared(blocks.given(peer), blocks.length(peer))) return false;
  }
  return true;
}

// Whether the other ranks read this rank's part of a reduction in its tensor.
bool Pipeline::keeps_result(const Blocks& blocks, const Position& position) const {
  return position.offers && blocks.reduces() && !blocks.parts();
}

// Whether a rank has given a piece. With the first one, finds out where.
bool Pipeline::given(const Position& position, uint64_t piece, int peer) {
  if (!pieces_.one(peer, &Known::copied_in, &Counts::copied_in, position.first + piece + 1)) return false;
  auto& given = given_[static_cast<std::size_t>(peer)];
  if (given.known) return true;
  pieces_.check(peer, position.first, position.digest);
  given.known = true;
  if (offers_.made(peer, position.first)) {
    given.block = memory_.find(peer, offers_.block(peer));
    given.result = offers_.result(peer) == nullptr ? nullptr : memory_.find(peer, offers_.result(peer));
    if (given.block == nullptr) given.remote = offers_.block(peer);
    if (given.block != nullptr && position.way) exchanging_.discard();
  }
  return true;
}

bool Pipeline::read_by_others(const Blocks& blocks, const Position& position) {
  for (int peer = 0; peer < size_; ++peer) {
    const bool reads = peer != rank_ && (blocks.reduces() || blocks.takes(peer));
    if (reads && !pieces_.one(peer, &Known::finished, &Counts::finished, position.first + position.pieces))
      return false;
  }
  return true;
}

bool Pipeline::copy_in(const Blocks& blocks, Position& position) {
  if (position.copied_in == position.pieces) return false;
  const auto number = position.first + position.copied_in;
  if (blocks.gives(rank_)) {
    // This rank's own use of the slot may be the last one: in a reduce, the others do not wait for the root.
    if (position.copied_in - position.finished == segment_.layout().pieces_ahead()) return false;
    if (!pieces_.free(number)) return false;
    if (position.copied_in == 0) pieces_.begin(position.first, position.digest);
    if (position.offers) return offer(blocks, position), true;
    const auto write = [&] { return write_piece(blocks, position, number), true; };
    position.way ? exchanging_.copy(write) : write();
    pieces_.own().copied_in.store(number + 1, std::memory_order_release);
  }
  ++position.copied_in;
  return true;
}

void Pipeline::write_piece(const Blocks& blocks, const Position& position, uint64_t number) {
  auto* const slot = segment_.piece(rank_, number);
  const auto use = blocks.reduces() ? Writing::kCombined : Writing::kCopied;
  const auto piece = range(position, position.copied_in, blocks.parts() ? blocks.longest() : blocks.length(rank_));
  writing_.begin(use, blocks.parts() ? size_ * piece.length() : piece.length(), position.way);
  if (blocks.parts()) {
    for (int peer = 0; peer < size_; ++peer) {
      const auto part = range(position, position.copied_in, blocks.length(peer));
      if (peer != rank_) writing_.write(slot + peer * position.piece, blocks.given(peer) + part.begin, part.length());
    }
  } else {
    const auto own = blocks.reduces() ? share(piece, rank_) : Range{};  // others do not need it
    const auto* const from = blocks.given(rank_) + piece.begin;
    writing_.write(slot, from, own.begin);
    writing_.write(slot + own.end, from + own.end, piece.length() - own.end);
  }
  writing_.end(use, number);
}

bool Pipeline::combine(const Call& call, const Blocks& blocks, Position& position) {
  if (position.combined == position.copied_in) return false;
  if (!blocks.reduces()) {
    position.combined = position.copied_in;
    return false;
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && !given(position, position.combined, peer)) return false;
  }
  const auto number = position.first + position.combined;
  const auto piece = range(position, position.combined, blocks.length(rank_));
  const auto own = blocks.parts() ? Range{0, piece.length()} : share(piece, rank_);
  const auto offset = blocks.parts() ? rank_ * position.piece : own.begin;
  for (int peer = 0; peer < size_; ++peer) {
    const auto* const block = peer == rank_ ? blocks.given(rank_) : given_[static_cast<std::size_t>(peer)].block;
    sources_[static_cast<std::size_t>(peer)] =
        block != nullptr ? block + piece.begin + own.begin : segment_.piece(peer, number) + offset;
  }
  auto* const result = segment_.piece(rank_, number) + offset;
  auto* const to = blocks.takes(rank_) ? blocks.taken(rank_) + piece.begin + own.begin : result;
  const auto bytes = own.length();
  const auto fold = [&] { combine_all(to, sources_, bytes / size_of(call.dtype), call.dtype, call.red); };
  const bool in_slots = std::ranges::none_of(given_, [](const Given& one) { return one.block != nullptr; });
  in_slots ? writing_.read_all(Writing::kCombined, number, bytes, fold) : fold();
  for (int peer = 0; peer < size_; ++peer) {
    if (given_[static_cast<std::size_t>(peer)].block != nullptr) offers_.check(peer);
  }
  if (!blocks.parts()) {
    if (to == result) {
      writing_.skip(Writing::kResult, number);
    } else if (!keeps_result(blocks, position)) {
      writing_.begin(Writing::kResult, piece.length());
      writing_.write(result, to, bytes);
      writing_.end(Writing::kResult, number);
    }
    pieces_.own().combined.store(number + 1, std::memory_order_release);
  }
  ++position.combined;
  return true;
}

// Reads a block of another process's memory up to an offset, or further; false if that process has ended.
bool Pipeline::read(const Blocks& blocks, int peer, int64_t end) {
  auto& theirs = given_[static_cast<std::size_t>(peer)];
  const auto length = blocks.taken_length(peer);
  for (; theirs.read < end; theirs.read += std::min(length - theirs.read, kRead)) {
    const auto bytes = std::min(length - theirs.read, kRead);
    const auto reading = memory_.read(peer, theirs.remote + theirs.read, blocks.taken(peer) + theirs.read, bytes,
                                      offers_.withdrawn(peer), 0);
    if (reading == Reading::GivenUp) Offers::given_up(peer);
    if (reading == Reading::Ended) return false;
  }
  return true;
}

// Copies the data that `peer` has combined or copied in; false if it has not done so yet.
bool Pipeline::copy_out(const Blocks& blocks, const Position& position, int peer) {
  const auto number = position.first + position.finished;
  const auto piece = range(position, position.finished, blocks.taken_length(peer));
  if (peer == rank_) {
    if (!blocks.reduces())
      copy_bytes(blocks.taken(peer) + piece.begin, blocks.given(peer) + piece.begin, piece.length());
    return true;
  }
  const bool result = blocks.reduces();
  if (result ? !pieces_.one(peer, &Known::combined, &Counts::combined, number + 1)
             : !given(position, position.finished, peer)) {
    return false;
  }
  const auto& theirs = given_[static_cast<std::size_t>(peer)];
  const auto part = result ? share(piece, peer) : Range{0, piece.length()};
  if (theirs.remote != nullptr) return read(blocks, peer, piece.end);
  auto* const to = blocks.taken(peer) + piece.begin + part.begin;
  if (const auto* const offered = result ? theirs.result : theirs.block) {
    copy_bytes(to, offered + piece.begin + part.begin, part.length());
  } else {
    const auto* const slot = segment_.piece(peer, number) + (blocks.parts() ? rank_ * position.piece : part.begin);
    const auto copy = [&] { copy_bytes(to, slot, part.length()); };
    const auto use = result ? Writing::kResult : Writing::kCopied;
    position.way ? copy() : writing_.read(use, number, peer, part.length(), copy);
  }
  if (theirs.block != nullptr) offers_.check(peer);
  return true;
}

bool Pipeline::finish(const Blocks& blocks, Position& position) {
  if (position.finished == position.combined) return false;
  const int before = position.next;
  if (blocks.takes(rank_) && !(blocks.reduces() && blocks.parts())) {
    for (; position.next < size_; ++position.next) {
      const int peer = (rank_ + position.next) % size_;
      const auto copy = [&] { return !blocks.gives(peer) || copy_out(blocks, position, peer); };
      if (!(position.way ? exchanging_.copy(copy) : copy())) return position.next != before;
    }
  }
  position.next = 0;
  pieces_.own().finished.store(position.first + position.finished + 1, std::memory_order_release);
  ++position.finished;
  return true;
}

bool Pipeline::advance(const Call& call, const Blocks& blocks, Position& position, Burst& burst) {
  if (!position.begun) begin(blocks, position);
  for (bool more = true; more;) {
    if (burst.left <= 0) return false;
    more = copy_in(blocks, position);
    more = combine(call, blocks, position) || more;
    more = finish(blocks, position) || more;
    burst.published = burst.published || more;
    if (more) burst.left -= position.piece * size_;
  }
  if (position.finished != position.pieces) return false;
  if (position.offers) {
    if (!read_by_others(blocks, position)) return false;
    offers_.end();
  }
  if (position.way) exchanging_.end();
  pieces_.end(position.first + position.pieces);
  return true;
}

}  // namespace mcr::shm
