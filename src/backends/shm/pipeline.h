// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "backends/shm/blocks.h"
#include "backends/shm/pieces.h"

namespace mcr::shm {

/// Large collectives, in pieces that go through a few slots of each rank. A piece has three phases, each with a counter
/// per rank: copy in the data that other ranks need; combine this rank's share of the piece, if the call reduces; copy
/// out the data that other ranks have combined or copied in. While one piece is copied in, the previous piece is
/// combined, and so on. One thread at a time.
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
  };

  /// `streams`: pieces for other ranks are written past the caches; equal on all ranks, as it decides on their size.
  Pipeline(Segment& segment, Pieces& pieces, int rank, bool streams);

  /// Makes progress without waiting. True once the call is complete. Sets `published` if other ranks may wait for this
  /// progress.
  bool advance(const Call& call, const Blocks& blocks, Position& position, bool& published);

 private:
  struct Range {
    int64_t begin = 0, end = 0;
    int64_t length() const { return end > begin ? end - begin : 0; }
  };

  void begin(const Blocks& blocks, Position& position);
  void hand_over(std::byte* to, const std::byte* from, int64_t bytes) const;
  bool copy_in(const Blocks& blocks, Position& position);
  bool combine(const Call& call, const Blocks& blocks, Position& position);
  bool finish(const Blocks& blocks, Position& position);
  bool copy_out(const Blocks& blocks, const Position& position, int peer);

  static Range range(const Position& position, uint64_t piece, int64_t length);
  Range share(const Range& piece, int rank) const;

  using Known = Pieces::Known;

  Segment& segment_;
  Pieces& pieces_;
  const int rank_, size_;
  const bool streams_;
  std::vector<const void*> sources_;
};

}  // namespace mcr::shm
