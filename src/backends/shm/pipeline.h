// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "backends/shm/blocks.h"
#include "backends/shm/exchanging.h"
#include "backends/shm/offers.h"
#include "backends/shm/peer_memory.h"
#include "backends/shm/pieces.h"
#include "backends/shm/writing.h"

namespace mcr::shm {

/// Large collectives, in pieces that go through a few slots of each rank. A piece has three phases, each with a counter
/// per rank: copy in the data that other ranks need; combine this rank's share of the piece, if the call reduces; copy
/// out the data that other ranks have combined or copied in. While one piece is copied in, the previous piece is
/// combined, and so on.
///
/// A rank may offer its tensor: then it copies nothing in, and ends the call when the other ranks have read it, either
/// in its heap or, in an all_gather or all_to_all, with the system's help in any memory of its process. Each rank
/// decides this for itself: the others see for each rank where its data is. One thread at a time.
class Pipeline {
 public:
  /// The progress of a call.
  struct Position {
    bool begun = false;
    uint64_t first = 0;  // the number of its first piece
    uint64_t pieces = 0;
    int64_t piece = 0;                                   // bytes of a block that one piece moves
    uint64_t copied_in = 0, combined = 0, finished = 0;  // pieces
    int next = 0;                                        // the rank to copy out next, counted from this one
    bool offers = false;
    std::optional<Writing::Way> way;  // in which this rank gives its data, if Exchanging has chosen it
    uint64_t digest = 0;              // of the call and those before
  };

  /// `streams`: pieces may be written past the caches (Writing); equal on all ranks, as it decides on their size.
  Pipeline(Segment& segment, History& history, Pieces& pieces, Offers& offers, const PeerMemory& memory, int rank,
           bool streams);

  /// Makes progress without waiting, as far as the burst goes. True once the call is complete. Throws Error if a rank
  /// has withdrawn its offer.
  bool advance(const Call& call, const Blocks& blocks, Position& position, Burst& burst);

 private:
  struct Range {
    int64_t begin = 0, end = 0;
    int64_t length() const { return end > begin ? end - begin : 0; }
  };

  /// Where a rank has its data: in its heap, elsewhere in its memory, or, if all are null, in pieces.
  struct Given {
    bool known = false;
    const std::byte* block = nullptr;   // to this rank
    const std::byte* result = nullptr;  // of its part of a reduction
    const std::byte* remote = nullptr;  // like `block`, an address in its process
    int64_t read = 0;                   // bytes of `remote`
  };

  void begin(const Blocks& blocks, Position& position);
  bool lies_in_heap(const Blocks& blocks) const;
  bool keeps_result(const Blocks& blocks, const Position& position) const;
  void offer(const Blocks& blocks, Position& position);
  bool given(const Position& position, uint64_t piece, int peer);
  bool read_by_others(const Blocks& blocks, const Position& position);
  bool copy_in(const Blocks& blocks, Position& position);
  void write_piece(const Blocks& blocks, const Position& position, uint64_t number);
  bool combine(const Call& call, const Blocks& blocks, Position& position);
  bool finish(const Blocks& blocks, Position& position);
  bool copy_out(const Blocks& blocks, const Position& position, int peer);
  bool read(const Blocks& blocks, int peer, int64_t end);

  static Range range(const Position& position, uint64_t piece, int64_t length);
  Range share(const Range& piece, int rank) const;

  using Known = Pieces::Known;

  Segment& segment_;
  History& history_;
  Pieces& pieces_;
  Offers& offers_;
  const PeerMemory& memory_;
  const int rank_, size_;
  const bool streams_;
  Writing writing_;
  Exchanging exchanging_;
  std::vector<Given> given_;  // in the running call, by rank
  std::vector<const void*> sources_;
};

}  // namespace mcr::shm
