// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/layout.h"

#include <unistd.h>

#include <algorithm>

#include "base/error.h"

namespace mcr::shm {

namespace {

// Pieces that fit into the second-level cache with those of a peer; larger ones gain nothing.
constexpr int64_t kPiece = 64 << 10;
constexpr uint64_t kFewPieces = 4;
constexpr uint64_t kFewSteps = 8;
// With more ranks than cores, a root that does not wait for others gets so far ahead before it yields its core.
constexpr uint64_t kManySteps = 64;
// Where more slots are faster, as long as those of all ranks take no more memory than this.
constexpr int64_t kManyBytes = 16 << 20;
constexpr int64_t kRing = 128 << 10;
constexpr int64_t kLeastPiece = 4 << 10;
constexpr int64_t kLeastRing = 4 << 10;

// Each rank's share of a piece must not become tiny.
int64_t least_piece(int ranks) { return std::max(kLeastPiece, round_up(ranks * kLine, 4096)); }

}  // namespace

Layout::Layout(int ranks) : ranks_(ranks), step_slots_(kFewSteps), piece_slots_(kFewPieces) {
  fit(least_piece(ranks), kLeastRing);
}

int64_t Layout::least(int ranks) { return Layout(ranks).bytes(); }

Layout::Layout(const Facts& facts)
    : ranks_(facts.ranks),
      step_slots_(facts.shares_cores ? kManySteps : kFewSteps),
      piece_slots_(facts.streams ? kMostPieceSlots : kFewPieces) {
  const int ranks = facts.ranks;
  const auto most = facts.most;
  const auto least = least_piece(ranks);
  auto piece = std::max(kPiece, least);
  auto ring = kRing;
  const auto large = [&] { return bytes_ > most || ranks * static_cast<int64_t>(piece_slots_) * piece > kManyBytes; };
  for (fit(piece, ring); piece_slots_ > kFewPieces && large(); fit(piece, ring)) piece_slots_ /= 2;
  for (; bytes_ > most && step_slots_ > kFewSteps; fit(piece, ring)) step_slots_ /= 2;
  for (; bytes_ > most && (ring > kLeastRing || piece > least); fit(piece, ring)) {
    ring = std::max(ring / 2, kLeastRing);
    if (ring == kLeastRing) piece = std::max(round_down(piece / 2, 4096), least);
  }
  if (bytes_ <= most) return;
  throw Error(ErrorCode::InvalidArgument, "shm: expected MCR_DL_SHM_BYTES of at least " + std::to_string(bytes_) +
                                              " for " + std::to_string(ranks) + " ranks, got " + std::to_string(most));
}

void Layout::fit(int64_t piece, int64_t ring) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  piece_ = piece;
  ring_ = ring;
  per_ring_ = static_cast<int64_t>(sizeof(Ring)) + ring;
  counters_ = bell_at(ranks_);
  ranks_at_ = round_up(counters_at(ranks_), page);
  offers_ = static_cast<int64_t>(step_slots_ * sizeof(Slot));
  pieces_ = round_up(offers_ + kLine + ranks_ * static_cast<int64_t>(sizeof(void*)), page);
  rings_ = pieces_ + static_cast<int64_t>(piece_slots_) * piece;
  per_rank_ = round_up(rings_ + (ranks_ > 1 ? ranks_ * per_ring_ : 0), page);
  bytes_ = ranks_at_ + ranks_ * per_rank_;
}

}  // namespace mcr::shm
