// SPDX-License-Identifier: Apache-2.0
// The layout of the memory that the ranks of a group share. docs/shm.md has the picture.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace mcr::shm {

inline constexpr int64_t kLine = 64;  // a cache line: words that different ranks write never share one

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr int64_t round_down(int64_t value, int64_t multiple) { return value / multiple * multiple; }

using Counter = std::atomic<uint64_t>;
static_assert(Counter::is_always_lock_free && sizeof(Counter) == 8);

/// A slot of small collectives: the data of one rank in one step.
struct alignas(kLine) Slot {
  static constexpr int64_t kInside = kLine - 8;  // bytes that arrive with the number, in one cache line
  static constexpr int64_t kBytes = 4096;        // bytes that arrive in the following lines

  Counter step;  // 1 + the last step that the rank has reached in this slot, with a digest of its calls (Steps)
  std::byte inside[kInside];
  std::byte data[kBytes];

  std::byte* at(int64_t bytes) { return bytes <= kInside ? inside : data; }
};

inline constexpr uint64_t kMostPieceSlots = 32;  // of large collectives, per rank
inline constexpr uint64_t kMostAhead = 16;       // pieces that a rank may be ahead of another one
inline constexpr std::size_t kExchanges = 16;    // kinds of calls for which Exchanging chooses

/// How many pieces of large collectives a rank has processed since the group was made, by phase.
struct Counts {
  using Ways = std::atomic<uint32_t>;
  static_assert(kMostPieceSlots <= 32);

  alignas(kLine) Counter copied_in;
  // Stored before `copied_in`:
  Counter offered;                          // 1 + the first piece of the last call with an offer (Offers)
  std::atomic<uint16_t> calls[kMostAhead];  // History of the call that begins with a piece
  Ways ways;                                // how the pieces were written (Writing): one bit per slot
  alignas(kLine) Counter combined;
  Ways result_ways;  // stored before `combined`; like `ways`, of what the rank has combined
  alignas(kLine) Counter finished;
  alignas(kLine) std::atomic<uint32_t> reads[3][2];  // the times of this rank's reads, by use and way (Writing)
  alignas(kLine) Counter exchanges[kExchanges];      // of the group's first rank: the ways of calls (Exchanging)
};

/// The futex on which a rank sleeps.
struct alignas(kLine) Bell {
  static constexpr uint32_t kClean = 1, kEarly = 2;

  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> sleepers;
  // The rank has destroyed its communicator. kClean: the end of its process is not an error; kEarly: after an error, or
  // before the end of its calls.
  std::atomic<uint32_t> left;
  std::atomic<uint32_t> failed;  // 1: an error has ended the rank's part of a collective, and so the group's calls
};

/// The packets from one rank to another. Positions count bytes since the group was made.
struct Ring {
  alignas(kLine) Counter written;  // by the sender
  Counter given_up;                // offers of the sender whose memory is no longer valid
  alignas(kLine) Counter read;     // by the receiver
  Counter delivered;               // bytes of eager messages that receives have taken
};

/// Offsets and sizes, computed from facts that are equal on all ranks.
class Layout {
 public:
  struct Facts {
    int ranks;
    int64_t most;               // bytes
    bool streams = false;       // pieces may be written past the caches (Writing)
    bool shares_cores = false;  // there are more ranks than cores
  };

  /// Throws Error if `most` bytes do not suffice for this many ranks.
  explicit Layout(const Facts& facts);
  /// The bytes that suffice for this many ranks, with the fewest slots and the shortest rings.
  static int64_t least(int ranks);

  int ranks() const { return ranks_; }
  uint64_t step_slots() const { return step_slots_; }  // of small collectives, per rank; a power of two
  int64_t bytes() const { return bytes_; }
  int64_t piece() const { return piece_; }  // bytes of a slot of large collectives
  uint64_t piece_slot(uint64_t number) const { return number % piece_slots_; }
  uint64_t pieces_ahead() const { return std::min(piece_slots_, kMostAhead); }
  int64_t ring() const { return ring_; }  // bytes of packets

  int64_t sleepers_at() const { return 0; }
  int64_t bell_at(int rank) const { return kLine + rank * static_cast<int64_t>(sizeof(Bell)); }
  int64_t counters_at(int rank) const { return counters_ + rank * static_cast<int64_t>(sizeof(Counts)); }
  /// All memory that `rank` writes, except for counters.
  int64_t rank_at(int rank) const { return ranks_at_ + rank * per_rank_; }
  int64_t per_rank() const { return per_rank_; }
  int64_t slot_at(int rank, uint64_t step) const {
    return rank_at(rank) + static_cast<int64_t>((step & (step_slots_ - 1)) * sizeof(Slot));
  }
  int64_t offer_at(int rank) const { return rank_at(rank) + offers_; }
  int64_t piece_at(int rank, uint64_t number) const {
    return rank_at(rank) + pieces_ + static_cast<int64_t>(piece_slot(number)) * piece_;
  }
  int64_t ring_at(int from, int to) const { return rank_at(from) + rings_ + to * per_ring_; }

 private:
  explicit Layout(int ranks);
  void fit(int64_t piece, int64_t ring);

  int ranks_;
  uint64_t step_slots_, piece_slots_;
  int64_t piece_ = 0, ring_ = 0, per_ring_ = 0;
  int64_t counters_ = 0, ranks_at_ = 0, per_rank_ = 0, offers_ = 0, pieces_ = 0, rings_ = 0, bytes_ = 0;
};

}  // namespace mcr::shm
