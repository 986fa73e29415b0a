// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/shm/blocks.h"
#include "backends/shm/peer_memory.h"
#include "backends/shm/segment.h"

namespace mcr::shm {

/// Memory of the caller that other ranks read during a large collective, instead of pieces of it. Each rank has one
/// offer at a time: a call with an offer ends when no rank reads any more. One thread at a time.
class Offers {
 public:
  Offers(Segment& segment, int rank) : segment_(segment), rank_(rank) {}

  /// Offers this rank's blocks in the call with this first piece, and its result; null if others do not read there.
  /// The counter `copied_in` announces the offer.
  void make(const Blocks& blocks, uint64_t first, const std::byte* result);
  /// Whether a rank has made an offer in the call with this first piece, which its counter `copied_in` has announced.
  bool made(int rank, uint64_t first) {
    return segment_.counts(rank).offered.load(std::memory_order_relaxed) == first + 1;
  }
  /// The addresses, in the process of the rank that offers.
  const std::byte* block(int rank) { return segment_.offer(rank).blocks()[rank_]; }
  const std::byte* result(int rank) { return segment_.offer(rank).result; }
  /// The counter that the rank changes when the memory is no longer valid, from 0.
  Counter& withdrawn(int rank) { return segment_.offer(rank).withdrawn; }
  /// Throws Error if the rank has withdrawn its offer. After reading.
  void check(int rank);
  /// Throws the Error for a rank that has withdrawn its offer.
  [[noreturn]] static void given_up(int rank);

  /// No rank reads any more.
  void end() { open_ = false; }
  /// The caller's memory is no longer valid: the other ranks' reads fail.
  void withdraw();

 private:
  Segment& segment_;
  const int rank_;
  bool open_ = false;
};

}  // namespace mcr::shm
