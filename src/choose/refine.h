// SPDX-License-Identifier: Apache-2.0
// Trying other candidates now and then while a program runs. What is tried depends on the calls alone, never on the
// times that this rank has measured: those count only once the ranks have agreed on them.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/call.h"

namespace mcr {

/// Counts the blocking collectives of one group, says which of them try another candidate and which are timed, and
/// keeps the times. Its methods may be called from any thread.
class Refinement {
 public:
  /// Times of a candidate are used from this many on; the last kKept count.
  static constexpr std::size_t kEnough = 9;
  static constexpr std::size_t kKept = 31;
  /// A candidate that takes 2^n times as long is tried 2^n times as seldom, up to this n.
  static constexpr int kMostSeldom = 6;
  /// In costs(): not enough times. It wins every maximum over the ranks.
  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

  /// One candidate's times in one bucket.
  struct Series {
    std::array<int64_t, kKept> times{};  // nanoseconds
    std::size_t count = 0;
    int64_t tries = 0;
    int64_t due = 0;  // the first window in which it may be tried again
  };

  /// Calls that cost alike: one op and form, one class of types, about one size.
  struct Bucket {
    Call call;  // the last one, without its buffers; its size_hint is the size. Equal on all ranks
    int64_t calls = 0;
    int64_t window = -1;
    int64_t trial = 0, timed = 0;  // which of the window's calls tries another candidate, and which is timed as it is
    std::vector<Series> series;    // one per candidate of the group
  };

  /// What a call does for the measurements.
  enum class Part : uint8_t { Nothing, Timed, Trial };
  struct Turn {
    Part part;
    Bucket* bucket;
  };

  /// A candidate that has the call.
  struct Option {
    std::size_t candidate;
    bool known;    // has a curve
    int32_t cost;  // by it
  };

  /// Of `period` calls of a bucket one tries another candidate. At least 2.
  Refinement(int64_t period, std::size_t candidates) : period_(period), candidates_(candidates) {}

  int64_t period() const { return period_; }

  /// The next call of the group.
  Turn next(const Call& call, int64_t bytes);
  /// Which of `others` a trial goes to, all of which have the call; null if it is the turn of none.
  const Option* pick(Bucket& bucket, const Option& chosen, std::span<const Option> others);
  void add(Series& series, std::chrono::nanoseconds time);

  /// A number that is equal on ranks that have made the same calls; at most 2^62.
  int64_t fingerprint() const;
  /// The medians as costs (log2 of nanoseconds, 16 fractional bits), all candidates of the first bucket first.
  std::vector<int64_t> costs() const;

  /// The buckets in the order in which they came up. Not beside next().
  std::span<const std::unique_ptr<Bucket>> buckets() const { return order_; }
  /// Forgets the times that have been used: those of candidates that `agreed` knows.
  static void settle(Bucket& bucket, std::span<const int64_t> agreed);

 private:
  Bucket& bucket_of(const Call& call, int64_t bytes);

  const int64_t period_;
  const std::size_t candidates_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Bucket*> buckets_;
  std::vector<std::unique_ptr<Bucket>> order_;
};

/// The time of one call, if it is one that is timed.
class Stopwatch {
 public:
  void start(Refinement& owner, Refinement::Series& series) {
    owner_ = &owner;
    series_ = &series;
    begin_ = std::chrono::steady_clock::now();
  }
  void stop() {
    if (series_ != nullptr) [[unlikely]]
      owner_->add(*series_, std::chrono::steady_clock::now() - begin_);
  }

 private:
  Refinement* owner_ = nullptr;
  Refinement::Series* series_ = nullptr;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace mcr
