// SPDX-License-Identifier: Apache-2.0
#include "choose/refine.h"

#include <algorithm>
#include <tuple>

#include "base/digest.h"
#include "choose/curve.h"
#include "choose/kinds.h"

namespace mcr {

namespace {

int64_t median(const Refinement::Series& series) {
  const auto kept = std::min(series.count, Refinement::kKept);
  auto times = series.times;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(kept / 2);
  std::nth_element(times.begin(), middle, times.begin() + static_cast<std::ptrdiff_t>(kept));
  return *middle;
}

}  // namespace

Refinement::Bucket& Refinement::bucket_of(const Call& call, int64_t bytes) {
  auto*& place = buckets_[kind_key(call, size_class(bytes))];
  if (place == nullptr) {
    place = order_.emplace_back(std::make_unique<Bucket>()).get();
    place->series.resize(candidates_);
  }
  return *place;
}

Refinement::Turn Refinement::next(const Call& call, int64_t bytes) {
  std::lock_guard lock(mutex_);
  Bucket& bucket = bucket_of(call, bytes);
  // The count, and everything derived from it, is a function of the calls made on the group in order, which are equal
  // on all ranks: so all ranks try the same candidate in the same call.
  const int64_t count = bucket.calls++;
  bucket.newest[static_cast<std::size_t>(count) % bucket.newest.size()] = kind_of(call, bytes);
  if (count / period_ != bucket.window) {
    bucket.window = count / period_;
    // At a random index of the window: a fixed index might hit the same line of a program's loop every time.
    const auto random = digest(1, static_cast<uint64_t>(bucket.window));
    bucket.trial = static_cast<int64_t>(random % static_cast<uint64_t>(period_));
    bucket.timed = (bucket.trial + period_ / 2) % period_;
  }
  const int64_t place = count % period_;
  const Part part = place == bucket.trial ? Part::Trial : place == bucket.timed ? Part::Timed : Part::Nothing;
  return {part, {&bucket, count}};
}

// The candidate that has waited longest. Candidates without a curve go first, but only as often as it takes to get one,
// as their times are unknown.
const Refinement::Option* Refinement::pick(Bucket& bucket, const Option& chosen, std::span<const Option> others) {
  std::lock_guard lock(mutex_);
  const auto key = [&](const Option& option) {
    return std::tuple(option.known, bucket.series[option.candidate].due, option.cost);
  };
  const Option* best = nullptr;
  for (const auto& option : others) {
    const auto& series = bucket.series[option.candidate];
    if (series.due > bucket.window || (!option.known && series.tries >= static_cast<int64_t>(kEnough))) continue;
    if (best == nullptr || key(option) < key(*best)) best = &option;
  }
  if (best == nullptr) return nullptr;
  const bool comparable = best->known && chosen.known;
  const int seldom = comparable ? std::clamp((best->cost - chosen.cost) >> 16, 0, kMostSeldom) : 0;
  auto& series = bucket.series[best->candidate];
  ++series.tries;
  series.due_before = series.due;
  series.due = bucket.window + (int64_t{1} << seldom);
  return best;
}

void Refinement::withdraw(const Count& count) {
  std::lock_guard lock(mutex_);
  auto& bucket = *count.bucket;
  if (bucket.calls != count.number + 1) return;
  if (bucket.calls == 1) {
    buckets_.erase(kind_key(bucket.call(), size_class(bucket.call().size_hint)));
    std::erase_if(order_, [&](const auto& each) { return each.get() == &bucket; });
    return;
  }
  --bucket.calls;
  if (count.tried == nullptr) return;
  --count.tried->tries;
  count.tried->due = count.tried->due_before;
}

void Refinement::add(Series& series, std::chrono::nanoseconds time) {
  std::lock_guard lock(mutex_);
  series.times[series.count++ % kKept] = time.count();
}

int64_t Refinement::fingerprint() const {
  std::lock_guard lock(mutex_);
  auto state = digest(0, static_cast<uint64_t>(period_));
  const auto mix = [&](uint64_t value) { state = digest(state, value); };
  for (const auto& bucket : order_) {
    const auto& call = bucket->call();
    mix(kind_key(call, size_class(call.size_hint)));
    mix(static_cast<uint64_t>(call.dtype) * kReductions.size() + static_cast<uint64_t>(call.red));
    mix(static_cast<uint64_t>(call.size_hint));
    mix(static_cast<uint64_t>(bucket->calls));
    for (const auto& series : bucket->series) mix(static_cast<uint64_t>(series.tries));
  }
  return static_cast<int64_t>(state >> 2);
}

std::vector<int64_t> Refinement::costs() const {
  std::lock_guard lock(mutex_);
  std::vector<int64_t> result;
  for (const auto& bucket : order_) {
    for (const auto& series : bucket->series) {
      result.push_back(series.count < kEnough ? kUnknown : fixed_log2(median(series)));
    }
  }
  return result;
}

void Refinement::restart(Bucket& bucket, std::span<const int64_t> agreed) {
  for (std::size_t i = 0; i < agreed.size(); ++i) {
    if (agreed[i] != kUnknown) bucket.series[i].count = 0;
  }
}

}  // namespace mcr
