// SPDX-License-Identifier: Apache-2.0
// Trials of the candidates of calls that the tuning table does not cover, while a program runs. The candidate of a call
// depends on the number of the call and on times that all ranks have agreed on, never on the times of one rank alone.
#pragma once

#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/call.h"
#include "choose/refine.h"
#include "runtime/work.h"

namespace mcr {

class Trials;

/// One timed call. The time counts that the caller spends in the call and in waiting for it; of a large collective
/// without a root that the caller's own work hides, the time until it is complete, as later calls wait for the network
/// and the cores that it uses.
class Trial final : public WaitTime {
 public:
  using Clock = std::chrono::steady_clock;

  /// A call's place among those that are timed.
  struct Place {
    std::size_t bucket, round, candidate, turn;
  };

  Trial(std::shared_ptr<Trials> owner, const Place& place)
      : owner_(std::move(owner)), place_(place), begin_(Clock::now()) {}

  /// The call has returned.
  void returned() { spent_ = Clock::now() - begin_; }
  /// The call is complete, and the caller has waited so long after it had returned. The first time counts.
  void waited(std::chrono::nanoseconds time) noexcept override;
  /// An asynchronous call is complete. After returned(), from any thread.
  void ended() noexcept;

 private:
  const std::shared_ptr<Trials> owner_;
  const Place place_;
  const Clock::time_point begin_;
  std::chrono::nanoseconds spent_{0};
  std::atomic_flag counted_ = ATOMIC_FLAG_INIT;
};

/// The trials of one group. Calls of one kind, type and reduction and about one size share a bucket. In each of three
/// rounds the calls of a bucket use its candidates in turn; then the ranks agree on the times of these calls while the
/// next calls use the best candidate so far, and slow candidates drop out. After the last round the calls use the
/// winner.
///
/// The time of a call, on one rank, has the wait for ranks that come later. Where all ranks wait for each other, the
/// last rank to come waits least, so the least time over the ranks counts; with a root, the largest.
/// Methods may be called from any thread.
class Trials : public std::enable_shared_from_this<Trials> {
 public:
  static constexpr int64_t kUnknown = Refinement::kUnknown;
  /// The times of some calls of each candidate in nanoseconds; of those that were not timed, kNotTimed.
  using Times = std::vector<std::vector<int64_t>>;
  static constexpr int64_t kNotTimed = -1;

  /// The candidates of a call: indexes in the group's list. Equal on all ranks.
  struct Options {
    std::size_t usual = 0;           // used while the trials have not decided
    std::vector<std::size_t> tried;  // those that are worth a trial, with the usual one
  };

  /// `candidates`: their names, in the group's order; `serial` tells this object from others of the group.
  Trials(std::string group, int64_t serial, std::vector<std::string> candidates);

  /// The number of a call in one round of its bucket.
  struct Count {
    std::size_t bucket = 0, round = 0;
    int64_t number = -1;  // -1: not counted
  };
  struct Turn {
    std::size_t candidate;
    std::shared_ptr<Trial> trial;  // null: the call is not timed
    bool decided = false;          // all later calls of the bucket use the candidate; false for its first call
    Count count = {};
  };
  /// One octave of sizes shares a bucket: the best candidate rarely differs inside. Up to 2 GiB.
  static constexpr std::size_t kOctaves = 32;
  static std::size_t octave(int64_t bytes) { return bytes < 2 ? 0 : std::bit_width(static_cast<uint64_t>(bytes)) - 1; }

  /// Counts a call, and returns its candidate. Nothing if the ranks must agree first: then call await(), and next()
  /// again. `options` is called for the first call of a bucket.
  std::optional<Turn> next(const Call& call, int64_t bytes, const std::function<Options()>& options);
  /// Gives back the number of the bucket's latest call, which has failed before anything was sent, perhaps only on this
  /// rank. If it was the bucket's first call, the next one makes the bucket again, with its own size.
  void withdraw(const Count& count);
  /// Waits until the ranks have agreed on what the call's bucket needs. Throws Error if they cannot, or what `check`
  /// throws, which is called now and then.
  void await(const Call& call, int64_t bytes, const std::function<void()>& check);

  /// The group has been closed: its reports are not for a later group of the same name.
  void close() noexcept { closed_.store(true, std::memory_order_relaxed); }

  /// Takes over what an earlier job has found: a candidate's cost in calls like this one (kind_of()), which are not
  /// tried again. Before next().
  void remember(const Call& kind, std::size_t candidate, int64_t cost);

  /// The times of one round of a bucket, for the ranks' agreement.
  class Report {
   public:
    Report(std::shared_ptr<Trials> owner, std::size_t bucket) : owner_(std::move(owner)), bucket_(bucket) {}
    const std::string& group() const { return owner_->group_; }
    /// Whether the group has been closed: another one may have its name now.
    bool closed() const { return owner_->closed_.load(std::memory_order_relaxed); }
    /// Equal on all ranks, and different for every report of a group.
    std::string key() const;
    /// The calls and their candidates as a text: equal on all ranks that have made the same calls.
    std::string what() const;
    /// This rank's times.
    Times times() const;
    /// Whether the largest time over the ranks counts for each call, not the least.
    bool largest_counts() const;
    /// How long a call has been waiting for the agreement.
    std::chrono::nanoseconds awaited() const;
    /// The ranks have agreed on these times.
    void agree(Times times) const;
    /// The ranks have agreed to end the trials of the bucket.
    void abandon() const { agree({}); }
    /// Whether the ranks have agreed is unknown, and so is the candidate that they use: this text is the error of all
    /// later calls of the bucket from the first on that needs it.
    void fail(const std::string& text) const;

   private:
    std::shared_ptr<Trials> owner_;
    std::size_t bucket_;
  };
  /// The next report of any group in this process; nothing after `limit`, or after wake(). In the order of the calls.
  static std::optional<Report> take(std::chrono::nanoseconds limit);
  /// Ends one running or later take().
  static void wake();

  /// The candidates and agreed costs of a bucket whose trials are over.
  struct Result {
    Call call;  // as of Refinement::Bucket
    std::size_t usual, chosen;
    bool remembered;                                     // from an earlier job
    std::vector<std::pair<std::size_t, int64_t>> costs;  // by candidate
  };
  /// The results of all buckets that have been decided.
  std::vector<Result> results() const;
  /// The result for calls like this one; nothing before.
  std::optional<Result> result(const Call& call, int64_t bytes) const;

 private:
  friend class Trial;
  struct Tested {
    std::size_t index;
    std::vector<int64_t> times = {};    // of this rank, in this round
    std::vector<int64_t> samples = {};  // agreed times of all rounds, without those that are not known
    int64_t cost = kUnknown;            // from these
  };
  struct Bucket {
    bool made = false;  // else the next call makes it
    Call call;          // the first
    std::size_t usual = 0, best = 0;
    std::vector<Tested> tried;    // in this round
    std::vector<Tested> dropped;  // in earlier rounds
    std::size_t round = 0;
    int64_t calls = 0;      // in this round
    bool reported = false;  // this round
    bool decided = false, remembered = false;
    std::optional<Times> agreed;
    std::string failure;
    std::optional<Trial::Clock::time_point> awaited;  // since when
  };

  static int64_t calls_before_report(const Bucket& bucket);
  // The bucket's next call needs the ranks' agreement.
  static bool at_agreement(const Bucket& bucket);
  static bool rooted(const Bucket& bucket) { return row(bucket.call.op).is(kRooted); }
  Bucket* find(const Call& call, int64_t bytes) const;
  // The index, and whether this call has made the bucket.
  std::pair<std::size_t, bool> bucket_of(const Call& call, int64_t bytes, const std::function<Options()>& options);
  void conclude(Bucket& bucket) const;
  void begin_round(Bucket& bucket) const;
  // The longest of a call's times counts: what its caller spends, and how long it runs (0: unknown).
  void add(const Trial::Place& place, std::chrono::nanoseconds spent, std::chrono::nanoseconds ran = {});
  static Result result_of(const Bucket& bucket);

  const std::string group_;
  const int64_t serial_;
  const std::vector<std::string> names_;
  std::atomic<bool> closed_{false};
  mutable std::mutex mutex_;
  std::condition_variable agreed_;
  std::unordered_map<uint64_t, std::size_t> places_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
};

}  // namespace mcr
