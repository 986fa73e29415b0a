// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "backends/shm/blocks.h"
#include "backends/shm/segment.h"
#include "backends/shm/writing.h"

namespace mcr::shm {

/// How the ranks give their blocks in a large all_gather or all_to_all: in pieces, which they write through the caches
/// or past them, or not at all, and the other ranks read them directly in the caller's memory. Which is the fastest
/// depends on the cores, on the size, and on what the caches hold. So the group's first rank measures the time that it
/// copies in a call, and chooses the way of later calls. It announces a way two calls before: no rank begins a call
/// before the first rank has begun the one before it, so all ranks use the same way. One call at a time.
class Exchanging {
 public:
  using Way = Writing::Way;

  /// `streams`: pieces may be written past the caches. `reads`: all ranks can read each other's memory. Both are equal
  /// on all ranks.
  Exchanging(Segment& segment, int rank, bool streams, bool reads);

  /// Begins a call, and returns its way; none if there is nothing to choose.
  std::optional<Way> begin(const Blocks& blocks);
  /// In the running call, the blocks of some rank were copied in another way, so that its time says nothing.
  void discard() { counts_ = false; }
  /// Runs an action that copies data of the running call, and returns whether there was some.
  template <class Action>
  bool copy(const Action& action) {
    const auto begin = Clock::now();
    const bool copied = action();
    if (copied) add(Clock::now() - begin);
    return copied;
  }
  /// The running call has copied for so long.
  void add(std::chrono::nanoseconds time) { copying_ += time; }
  /// Ends the running call.
  void end();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kWays = 3;

  /// The time of calls in one way, in ns per 64 KiB of a block: the third least of the last eight, since some calls
  /// find cold caches or lose their core.
  class Cost {
   public:
    void add(uint32_t time);
    void forget() { count_ = 0; }
    uint32_t value() const { return value_; }  // 0 if not known

   private:
    std::array<uint32_t, 8> last_{};
    std::size_t count_ = 0;
    uint32_t value_ = 0;
  };
  /// The calls of one kind and class of sizes.
  struct Kind {
    uint64_t calls = 0;
    // Of the group's first rank:
    Way best = Writing::kDirect;
    uint64_t trials = 0;
    bool trying = true;
    std::array<Cost, kWays> costs;  // by way
  };

  Kind& kind(const Blocks& blocks);
  Counter& announced(const Kind& kind) const;
  Way first_way(const Blocks& blocks) const;
  void choose(Kind& kind);
  void announce(Kind& kind, Way way);
  std::optional<Way> next_trial(Kind& kind) const;
  Way cheapest(const Kind& kind) const;

  Segment& segment_;
  const int rank_, size_;
  std::vector<Way> ways_;  // to choose from
  std::array<Kind, kExchanges> kinds_;

  // Of the running call.
  Kind* running_ = nullptr;
  Way way_ = Writing::kDirect;
  int64_t bytes_ = 0;  // of a block
  bool counts_ = true;
  std::chrono::nanoseconds copying_{};
};

}  // namespace mcr::shm
