// SPDX-License-Identifier: Apache-2.0
// Trying other candidates now and then while a program runs. Which candidate is tried depends only on the calls, never
// on the times that this rank has measured: those count only after the ranks have agreed on them.
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

/// Counts the blocking collectives of one group, decides which of them try another candidate and which are timed, and
/// keeps the times. Methods may be called from any thread.
class Refinement {
 public:
  /// A candidate's times are used once there are this many; the last kKept times count.
  static constexpr std::size_t kEnough = 9;
  static constexpr std::size_t kKept = 31;
  /// A candidate that takes 2^n times as long is tried 2^n times less often, up to this n.
  static constexpr int kMostSeldom = 6;
  /// In costs(): too few times. It wins every maximum over the ranks.
  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

  /// One candidate's times in one bucket.
  struct Series {
    std::array<int64_t, kKept> times{};  // nanoseconds
    std::size_t count = 0;
    int64_t tries = 0;
    int64_t due = 0;         // the first window in which it may be tried again
    int64_t due_before = 0;  // the last try
  };

  /// Calls of similar cost: one op and form, one class of types, about one size.
  struct Bucket {
    /// The latest call, without its buffers; its size_hint is the size. Equal on all ranks.
    const Call& call() const { return newest[static_cast<std::size_t>(calls - 1) % newest.size()]; }
    std::array<Call, 4> newest;  // by number: threads may withdraw several in a row
    int64_t calls = 0;
    int64_t window = -1;
    int64_t trial = 0, timed = 0;  // indexes in the window: the call that tries another candidate, and the timed call
    std::vector<Series> series;    // one per candidate of the group
  };

  /// A call's part in the counts, for withdraw().
  struct Count {
    Bucket* bucket = nullptr;  // null: nothing
    int64_t number = 0;        // of the call in its bucket
    Series* tried = nullptr;   // that of the candidate that pick() has returned for it
  };

  /// A call's part in the measurements.
  enum class Part : uint8_t { Nothing, Timed, Trial };
  struct Turn {
    Part part;
    Count count;
  };

  /// A candidate that can do the call.
  struct Option {
    std::size_t candidate;
    bool known;    // has a curve
    int32_t cost;  // from the curve
  };

  /// One of `period` calls of a bucket tries another candidate. At least 2.
  Refinement(int64_t period, std::size_t candidates) : period_(period), candidates_(candidates) {}

  int64_t period() const { return period_; }

  /// Counts the group's next call.
  Turn next(const Call& call, int64_t bytes);
  /// The candidate among `others`, which can all do the call, that the trial uses; null if none is due.
  const Option* pick(Bucket& bucket, const Option& chosen, std::span<const Option> others);
  /// Takes back the count of the bucket's latest call, which has failed before anything was sent, perhaps only on this
  /// rank; without other calls also the bucket.
  void withdraw(const Count& count);
  void add(Series& series, std::chrono::nanoseconds time);

  /// A number that is equal on ranks that have made identical calls; at most 2^62.
  int64_t fingerprint() const;
  /// The medians as costs (log2 of nanoseconds, 16 fractional bits), bucket by bucket, one per candidate.
  std::vector<int64_t> costs() const;

  /// The buckets in the order in which they were created. Not concurrently with next().
  std::span<const std::unique_ptr<Bucket>> buckets() const { return order_; }
  /// Forgets the times that have been used: those of candidates that have a cost in `agreed`.
  static void restart(Bucket& bucket, std::span<const int64_t> agreed);

 private:
  Bucket& bucket_of(const Call& call, int64_t bytes);

  const int64_t period_;
  const std::size_t candidates_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Bucket*> buckets_;
  std::vector<std::unique_ptr<Bucket>> order_;
};

/// Times one call, if it is to be timed.
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
