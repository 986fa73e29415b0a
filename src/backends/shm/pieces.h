// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backends/shm/segment.h"
#include "base/error.h"

namespace mcr::shm {

/// The Error for a rank of the group that has made another call than this one, or before this one.
inline Error different_calls(int rank) {
  return {ErrorCode::Backend,
          "shm: the ranks have made different calls: expected equal operations, sizes, types and "
          "roots in this call and all before it, got others on rank " +
              std::to_string(rank) + " of the group"};
}
[[noreturn]] inline void differs(int rank) { throw different_calls(rank); }

/// The numbers of the pieces of large collectives, and how far each rank is. One thread at a time.
class Pieces {
 public:
  /// The last known counters of a rank.
  struct Known {
    uint64_t copied_in = 0, combined = 0, finished = 0;
  };

  Pieces(Segment& segment, int rank)
      : segment_(segment), rank_(rank), known_(static_cast<std::size_t>(segment.layout().ranks())) {}

  /// Numbers the next pieces, and returns the first number.
  uint64_t take(uint64_t pieces) { return std::exchange(next_, next_ + pieces); }
  /// Whether a rank's counter has reached a value.
  bool one(int rank, uint64_t Known::* known, Counter Counts::* counter, uint64_t least) {
    auto& seen = known_[static_cast<std::size_t>(rank)].*known;
    if (seen < least) seen = (segment_.counts(rank).*counter).load(std::memory_order_acquire);
    return seen >= least;
  }
  /// Whether the counters of all other ranks have.
  bool all(uint64_t Known::* known, Counter Counts::* counter, uint64_t least) {
    for (int peer = 0; peer < segment_.layout().ranks(); ++peer) {
      if (peer != rank_ && !one(peer, known, counter, least)) return false;
    }
    return true;
  }
  /// Whether no rank needs any more what was in the piece's slot before.
  bool free(uint64_t number) {
    const auto ahead = segment_.layout().pieces_ahead();
    return number < ahead || all(&Known::finished, &Counts::finished, number + 1 - ahead);
  }
  /// Says which call (History) begins with a piece whose slot is free. The counter `copied_in` announces it.
  void begin(uint64_t first, uint64_t digest) {
    own().calls[first % kMostAhead].store(static_cast<uint16_t>(digest), std::memory_order_relaxed);
  }
  /// Throws Error if a rank, whose counter `copied_in` has announced the first piece, has made another call, now or
  /// before.
  void check(int rank, uint64_t first, uint64_t digest) {
    if (segment_.counts(rank).calls[first % kMostAhead].load(std::memory_order_relaxed) != digest) differs(rank);
  }
  Counts& own() { return segment_.counts(rank_); }
  /// Ends a call: later calls compare all counters, including those that it did not need.
  void end(uint64_t past) {
    own().copied_in.store(past, std::memory_order_release);
    own().combined.store(past, std::memory_order_release);
  }

 private:
  Segment& segment_;
  const int rank_;
  uint64_t next_ = 0;
  std::vector<Known> known_;
};

}  // namespace mcr::shm
