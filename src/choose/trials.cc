// SPDX-License-Identifier: Apache-2.0
#include "choose/trials.h"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <utility>

#include "base/digest.h"
#include "base/error.h"
#include "base/immortal.h"
#include "choose/curve.h"
#include "choose/kinds.h"

namespace mcr {

namespace {

// A round tries every candidate so many times; those stay that take at most 2^most times as long as the best.
struct Round {
  int64_t tries;
  int32_t most;  // in units of costs
};
constexpr std::array<Round, 3> kRounds = {{{4, 3 << 16}, {6, 1 << 15}, {9, 0}}};

// The usual candidate stays unless another is faster by 10 %: a program's own work disturbs the times.
constexpr int32_t kClearly = 9011;

// Calls with one key have the same candidates: which ones can do a reduction may depend on it, and on the type.
uint64_t key_of(const Call& call, int64_t bytes) {
  const auto key = kind_key(call, static_cast<int>(Trials::octave(bytes)));
  if (!row(call.op).is(kReduces)) return key;
  return (key * kDTypes.size() + static_cast<uint64_t>(call.dtype)) * kReductions.size() +
         static_cast<uint64_t>(call.red);
}

// The calls after a round that the ranks have for their agreement, about a millisecond's worth or more.
int64_t calls_to_agree(int64_t bytes) {
  if (bytes <= 4 << 10) return 1024;
  if (bytes <= 64 << 10) return 256;
  return bytes <= 1 << 20 ? 32 : 8;
}

// The calls after a round before its times are reported: works of asynchronous calls are waited for later.
int64_t calls_to_report(const Call& call) { return call.asynchronous ? calls_to_agree(call.size_hint) / 2 : 0; }

// The lower quartile: other work can only make a call slower.
int64_t cost_of(std::vector<int64_t> samples) {
  if (samples.empty()) return Trials::kUnknown;
  const auto place = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 4);
  std::nth_element(samples.begin(), place, samples.end());
  return fixed_log2(*place);
}

// A thread that naps sees the end of a call that its caller does not wait for, and may have to wait for a core. The
// time until the end of a smaller call would tell about that thread alone.
constexpr std::chrono::milliseconds kSeenLate{1};
constexpr int64_t kLeastHidden = 256 << 10;

// The reports of all groups. Never destroyed: a thread may wait in it until the process ends.
struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Trials::Report> reports;
  int wakes = 0;
};

Queue& queue() {
  static auto& instance = immortal<Queue>();
  return instance;
}

}  // namespace

void Trial::waited(std::chrono::nanoseconds time) noexcept {
  if (!counted_.test_and_set(std::memory_order_relaxed)) owner_->add(place_, spent_ + time);
}

void Trial::ended() noexcept { owner_->add(place_, spent_, Clock::now() - begin_); }

Trials::Trials(std::string group, int64_t serial, std::vector<std::string> candidates)
    : group_(std::move(group)), serial_(serial), names_(std::move(candidates)) {}

Trials::Bucket* Trials::find(const Call& call, int64_t bytes) const {
  const auto found = places_.find(key_of(call, bytes));
  return found == places_.end() ? nullptr : buckets_[found->second].get();
}

std::pair<std::size_t, bool> Trials::bucket_of(const Call& call, int64_t bytes,
                                               const std::function<Options()>& options) {
  const auto [found, added] = places_.try_emplace(key_of(call, bytes), buckets_.size());
  if (added) buckets_.emplace_back(std::make_unique<Bucket>());
  auto& bucket = *buckets_[found->second];
  if (bucket.made) return {found->second, false};
  const auto given = options();
  bucket.call = kind_of(call, bytes);
  bucket.usual = bucket.best = given.usual;
  for (const auto index : given.tried) bucket.tried.push_back({.index = index});
  bucket.decided = bucket.tried.size() < 2;
  begin_round(bucket);
  bucket.made = true;
  return {found->second, true};
}

void Trials::begin_round(Bucket& bucket) const {
  bucket.calls = 0;
  bucket.reported = false;
  for (auto& each : bucket.tried) each.times.assign(static_cast<std::size_t>(kRounds[bucket.round].tries), kNotTimed);
}

void Trials::remember(const Call& kind, std::size_t candidate, int64_t cost) {
  const std::lock_guard lock(mutex_);
  auto& bucket = *buckets_[bucket_of(kind, kind.size_hint, [&] { return Options{candidate, {}}; }).first];
  const auto best = std::ranges::find(bucket.tried, bucket.best, &Tested::index);
  if (best == bucket.tried.end() || cost < best->cost) bucket.usual = bucket.best = candidate;
  bucket.tried.push_back({.index = candidate, .cost = cost});
  bucket.remembered = true;
}

int64_t Trials::calls_before_report(const Bucket& bucket) {
  const auto tries = kRounds[bucket.round].tries * static_cast<int64_t>(bucket.tried.size());
  return tries + calls_to_report(bucket.call);
}

bool Trials::at_agreement(const Bucket& bucket) {
  return !bucket.decided && bucket.calls == calls_before_report(bucket) + calls_to_agree(bucket.call.size_hint);
}

// A function of the number of the call in its bucket, and of agreed times: so all ranks get the same candidate.
std::optional<Trials::Turn> Trials::next(const Call& call, int64_t bytes, const std::function<Options()>& options) {
  const std::lock_guard lock(mutex_);
  const auto [number, first] = bucket_of(call, bytes, options);
  auto& bucket = *buckets_[number];
  if (!bucket.decided) {
    if (bucket.calls == calls_before_report(bucket) && !std::exchange(bucket.reported, true)) {
      auto& reports = queue();
      const std::lock_guard other(reports.mutex);
      reports.reports.emplace_back(shared_from_this(), number);
      reports.changed.notify_all();
    }
    if (at_agreement(bucket)) {
      if (!bucket.agreed) return std::nullopt;
      conclude(bucket);
    }
  }
  const auto count = bucket.calls++;
  const Count counted{number, bucket.round, count};
  if (bucket.decided) return Turn{bucket.best, nullptr, !first, first ? counted : Count{}};
  const auto width = static_cast<int64_t>(bucket.tried.size());
  if (count >= kRounds[bucket.round].tries * width) {
    return Turn{.candidate = bucket.best, .trial = nullptr, .count = counted};
  }
  // The order changes from turn to turn: a program's loop may have several calls of one bucket.
  const auto turn = static_cast<uint64_t>(count / width);
  const auto place = (static_cast<uint64_t>(count) + digest(1, turn)) % static_cast<uint64_t>(width);
  const Trial::Place timed{number, bucket.round, place, turn};
  return Turn{.candidate = bucket.tried[place].index,
              .trial = std::make_shared<Trial>(shared_from_this(), timed),
              .count = counted};
}

void Trials::withdraw(const Count& count) {
  const std::lock_guard lock(mutex_);
  auto& bucket = *buckets_[count.bucket];
  if (bucket.round != count.round || bucket.calls != count.number + 1) return;
  --bucket.calls;
  if (bucket.round == 0 && bucket.calls == 0) bucket = Bucket{};
}

void Trials::await(const Call& call, int64_t bytes, const std::function<void()>& check) {
  std::unique_lock lock(mutex_);
  auto* const bucket = find(call, bytes);
  if (bucket == nullptr) return;
  if (!bucket->awaited) bucket->awaited = Trial::Clock::now();
  // Another waiting thread may have taken what the ranks have agreed on.
  const auto over = [&] { return bucket->agreed || !bucket->failure.empty() || !at_agreement(*bucket); };
  while (!agreed_.wait_for(lock, kLookInterval, over)) {
    lock.unlock();
    check();
    lock.lock();
  }
  if (!bucket->failure.empty()) throw Error(ErrorCode::Backend, bucket->failure);
}

// The candidates in the order of the group, so that all ranks break ties alike.
void Trials::conclude(Bucket& bucket) const {
  const auto times = *std::exchange(bucket.agreed, std::nullopt);
  bucket.awaited.reset();
  for (std::size_t i = 0; i < times.size(); ++i) {
    auto& candidate = bucket.tried[i];
    std::ranges::copy_if(times[i], std::back_inserter(candidate.samples), [](int64_t time) { return time >= 0; });
    candidate.cost = cost_of(candidate.samples);
  }
  const auto cost = [](const Tested& candidate) { return candidate.cost; };
  const auto best = std::ranges::min_element(bucket.tried, {}, cost);
  if (times.empty() || best->cost == kUnknown) {  // nothing was learnt, or only a part, which is no result
    bucket.best = bucket.usual;
    bucket.decided = true;
    for (auto* const part : {&bucket.tried, &bucket.dropped}) {
      for (auto& each : *part) each.cost = kUnknown;
    }
    return;
  }
  const auto usual = std::ranges::find(bucket.tried, bucket.usual, &Tested::index);
  const bool stays = usual != bucket.tried.end() && usual->cost <= best->cost + kClearly;
  bucket.best = stays ? bucket.usual : best->index;
  const auto limit = best->cost + kRounds[bucket.round].most;
  ++bucket.round;
  bucket.decided = bucket.round == kRounds.size();
  if (bucket.decided) return;
  const auto slow = std::stable_partition(bucket.tried.begin(), bucket.tried.end(),
                                          [&](const Tested& each) { return each.cost <= limit; });
  std::move(slow, bucket.tried.end(), std::back_inserter(bucket.dropped));
  bucket.tried.erase(slow, bucket.tried.end());
  bucket.decided = bucket.tried.size() < 2;
  begin_round(bucket);
}

void Trials::add(const Trial::Place& place, std::chrono::nanoseconds spent, std::chrono::nanoseconds ran) {
  const std::lock_guard lock(mutex_);
  auto& bucket = *buckets_[place.bucket];
  const bool first = place.round == 0 && place.turn == 0;  // a library may prepare something then
  if (first || bucket.decided || bucket.round != place.round) return;
  // With a root the ranks do not wait for each other: a call runs as long as the root takes to come.
  if (ran.count() != 0 && (rooted(bucket) || bucket.call.size_hint < kLeastHidden)) return;
  auto& known = bucket.tried[place.candidate].times[place.turn];
  known = std::max({known, spent.count(), (ran - kSeenLate).count()});
}

Trials::Result Trials::result_of(const Bucket& bucket) {
  Result result{bucket.call, bucket.usual, bucket.best, bucket.remembered, {}};
  for (const auto* part : {&bucket.tried, &bucket.dropped}) {
    for (const auto& each : *part) {
      if (each.cost != kUnknown) result.costs.emplace_back(each.index, each.cost);
    }
  }
  std::ranges::sort(result.costs);
  return result;
}

std::vector<Trials::Result> Trials::results() const {
  const std::lock_guard lock(mutex_);
  std::vector<Result> found;
  for (const auto& bucket : buckets_) {
    if (!bucket->decided) continue;
    auto result = result_of(*bucket);
    if (result.costs.size() > 1) found.push_back(std::move(result));
  }
  return found;
}

std::optional<Trials::Result> Trials::result(const Call& call, int64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto* bucket = find(call, bytes);
  if (bucket == nullptr || !bucket->decided) return std::nullopt;
  auto result = result_of(*bucket);
  return result.costs.size() > 1 ? std::optional(std::move(result)) : std::nullopt;
}

// ---- reports

std::string Trials::Report::key() const {
  const std::lock_guard lock(owner_->mutex_);
  const auto& bucket = *owner_->buckets_[bucket_];
  const auto kind = key_of(bucket.call, bucket.call.size_hint);
  return std::to_string(owner_->serial_) + "/" + std::to_string(kind) + "/" + std::to_string(bucket.round);
}

std::string Trials::Report::what() const {
  const std::lock_guard lock(owner_->mutex_);
  const auto& bucket = *owner_->buckets_[bucket_];
  const auto& call = bucket.call;
  auto text = operation_name(call.op, call.vectored) + (call.asynchronous ? ", asynchronous" : "");
  if (row(call.op).is(kReduces)) text += ", " + std::string(row(call.dtype).name) + ", " + std::string(name(call.red));
  text += ", " + std::to_string(int64_t{1} << octave(call.size_hint)) + " bytes:";
  for (const auto& each : bucket.tried) text += " " + owner_->names_[each.index];
  return text;
}

Trials::Times Trials::Report::times() const {
  const std::lock_guard lock(owner_->mutex_);
  Times result;
  for (const auto& each : owner_->buckets_[bucket_]->tried) result.push_back(each.times);
  return result;
}

bool Trials::Report::largest_counts() const {
  const std::lock_guard lock(owner_->mutex_);
  return rooted(*owner_->buckets_[bucket_]);
}

std::chrono::nanoseconds Trials::Report::awaited() const {
  const std::lock_guard lock(owner_->mutex_);
  const auto& since = owner_->buckets_[bucket_]->awaited;
  return since ? Trial::Clock::now() - *since : std::chrono::nanoseconds(0);
}

void Trials::Report::agree(Times times) const {
  const std::lock_guard lock(owner_->mutex_);
  auto& bucket = *owner_->buckets_[bucket_];
  if (!times.empty() && times.size() != bucket.tried.size()) {
    throw Error(ErrorCode::InvalidArgument, "times: expected those of " + std::to_string(bucket.tried.size()) +
                                                " candidates, got " + std::to_string(times.size()));
  }
  bucket.agreed = std::move(times);
  owner_->agreed_.notify_all();
}

void Trials::Report::fail(const std::string& text) const {
  const std::lock_guard lock(owner_->mutex_);
  owner_->buckets_[bucket_]->failure = text;
  owner_->agreed_.notify_all();
}

std::optional<Trials::Report> Trials::take(std::chrono::nanoseconds limit) {
  auto& reports = queue();
  std::unique_lock lock(reports.mutex);
  reports.changed.wait_for(lock, limit, [&] { return reports.wakes > 0 || !reports.reports.empty(); });
  if (reports.wakes > 0) return --reports.wakes, std::nullopt;
  if (reports.reports.empty()) return std::nullopt;
  auto first = std::move(reports.reports.front());
  reports.reports.pop_front();
  return first;
}

void Trials::wake() {
  auto& reports = queue();
  const std::lock_guard lock(reports.mutex);
  ++reports.wakes;
  reports.changed.notify_all();
}

}  // namespace mcr
