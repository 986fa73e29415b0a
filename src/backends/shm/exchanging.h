// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "backends/shm/blocks.h"
#include "backends/shm/writing.h"

namespace mcr::shm {

/// How a rank gives its blocks in a large all_gather or all_to_all: in pieces, which it writes through the caches or
/// past them, or not at all, while the other ranks read them directly in its tensor. Which is the fastest depends on
/// the cores, on the size, and on what else the machine does. So each rank measures the time that it copies in a call,
/// and makes its next calls in the way that took the least. Each rank decides for itself, as the others see where its
/// blocks are; but it tries the ways in the same calls as the others, since only equal ways of all ranks can be
/// compared. Results do not depend on it. One call at a time.
class Exchanging {
 public:
  using Way = Writing::Way;

  /// `streams`: pieces may be written past the caches. `reads`: all ranks can read each other's memory. Both are equal
  /// on all ranks.
  Exchanging(bool streams, bool reads);

  /// Begins a call, and returns this rank's way; none if there is nothing to choose.
  std::optional<Way> begin(const Blocks& blocks, int size);
  /// Another rank gives its blocks in the running call in this way.
  void compare(Way way) { alike_ = alike_ && way == way_; }
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
  static constexpr int kClasses = 8;  // of sizes

  /// What the last calls in one way cost, in ns per 64 KiB of a block.
  struct Costs {
    std::array<uint32_t, 5> last{};
    uint32_t count = 0;
    uint32_t median = 0;  // 0 if not known

    void add(uint32_t cost);
  };
  /// The calls of one kind and class of sizes.
  struct Kind {
    uint64_t calls = 0;
    Way best = Writing::kDirect;
    std::array<Costs, kWays> costs;  // by way
  };

  Kind& kind(const Blocks& blocks);
  Way next(Kind& kind) const;
  void choose(Kind& kind) const;

  std::vector<Way> ways_;  // to choose from
  std::array<std::array<Kind, kClasses>, 2> kinds_;

  // Of the running call.
  Kind* running_ = nullptr;
  Way way_ = Writing::kDirect;
  int64_t bytes_ = 0;  // of a block
  bool alike_ = true;
  std::chrono::nanoseconds copying_{};
};

}  // namespace mcr::shm
