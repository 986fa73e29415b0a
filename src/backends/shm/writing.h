// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "backends/shm/segment.h"

namespace mcr::shm {

/// How a rank writes pieces for other ranks. Between cores that share a cache, data is read twice as fast if it was
/// written through the caches; between others, four to nine times as fast if it was written past them (stream_bytes()).
/// A rank cannot know on which cores the others run, and a virtual machine moves its cores. So on some pieces each rank
/// measures how long it writes, and how long it reads what others have written, which it tells them, and writes its
/// next pieces in the way that takes the least time. Results do not depend on it. One thread at a time.
class Writing {
 public:
  /// How the other ranks read a piece: they copy it, combine it with others, or copy a result of this rank.
  enum Use : uint8_t { kCopied, kCombined, kResult };
  /// How a rank gives data. kDirect: it does not write it, the other ranks read it in the caller's memory.
  enum Way : uint8_t { kCached, kStreamed, kDirect, kUnknown };

  /// Without `chooses`, all pieces are written through the caches, and nothing is measured.
  Writing(Segment& segment, int rank, bool chooses);

  /// Before the parts of a piece are written, which is so large on all ranks together; end() before it is published.
  /// `given`: in this way, without measuring.
  void begin(Use use, int64_t bytes, std::optional<Way> given = std::nullopt);
  void write(std::byte* to, const std::byte* from, int64_t bytes);
  void end(Use use, uint64_t number);
  /// In place of these: the piece was written by other means, through the caches.
  void skip(Use use, uint64_t number);

  /// Runs an action that reads so many bytes of a rank's piece.
  template <class Action>
  void read(Use use, uint64_t number, int peer, int64_t bytes, const Action& action) {
    timed(use, chooses_ ? way(use, number, peer) : kUnknown, bytes, action);
  }
  /// Like read(), of the pieces of all other ranks.
  template <class Action>
  void read_all(Use use, uint64_t number, int64_t bytes, const Action& action) {
    timed(use, chooses_ ? common_way(use, number) : kUnknown, bytes, action);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kUses = 3, kWays = 2;
  static Way other(Way way) { return way == kCached ? kStreamed : kCached; }

  template <class Action>
  void timed(Use use, Way way, int64_t bytes, const Action& action) {
    if (way == kUnknown || !measures(use, way, bytes)) return action();
    const auto begin = Clock::now();
    action();
    note_reading(use, way, bytes, Clock::now() - begin);
  }
  Counts::Ways& ways(Use use, int rank) const;
  void mark(Use use, uint64_t number, Way way);
  Way way(Use use, uint64_t number, int peer) const;
  Way common_way(Use use, uint64_t number) const;
  bool measures(Use use, Way way, int64_t bytes);
  void note_reading(Use use, Way way, int64_t bytes, Clock::duration time);
  void choose(Use use);
  uint32_t cost(Use use, Way way) const;

  Segment& segment_;
  const int rank_, size_;
  const bool chooses_;

  // Of the piece that is being written.
  Way way_ = kCached;
  int64_t bytes_ = 0;  // written
  std::optional<Clock::time_point> begun_;

  std::array<Way, kUses> best_{kStreamed, kStreamed, kStreamed};
  std::array<uint64_t, kUses> written_{}, read_{};  // pieces that are large enough
  std::array<Way, kUses> last_read_{kUnknown, kUnknown, kUnknown};
  // ns per 64 KiB, 0 if not known.
  std::array<uint32_t, kWays> writes_{};
  std::array<std::array<uint32_t, kWays>, kUses> reads_{};
};

}  // namespace mcr::shm
