// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/writing.h"

#include <algorithm>
#include <utility>

#include "backends/shm/copies.h"

namespace mcr::shm {

namespace {

constexpr int64_t kUnit = 64 << 10;
constexpr int64_t kLeastCached = 32 << 10;  // smaller pieces are never written through the caches
constexpr int64_t kLeastMeasured = 4 << 10;
constexpr uint64_t kMeasured = 4;  // one piece in so many is measured
// One piece in so many is written in the other way: more of the first ones, until the ways are known.
constexpr uint64_t kTried = 256, kFirst = 256, kFirstTried = 16;

// The mean of the last times. A thread that loses its core in a measurement must not decide alone.
void note(uint32_t& estimate, int64_t bytes, std::chrono::nanoseconds time) {
  const auto found = std::max<int64_t>(1, time.count() * kUnit / bytes);
  if (estimate == 0) {
    estimate = static_cast<uint32_t>(std::min<int64_t>(found, 1 << 30));
  } else {
    estimate = static_cast<uint32_t>((estimate + std::min<int64_t>(found, int64_t{estimate} * 2)) / 2);
  }
}

}  // namespace

Writing::Writing(Segment& segment, int rank, bool chooses)
    : segment_(segment), rank_(rank), size_(segment.layout().ranks()), chooses_(chooses) {}

void Writing::begin(Use use, int64_t bytes, std::optional<Way> given) {
  if (!chooses_) return;
  way_ = given.value_or(kStreamed);
  begun_.reset();
  bytes_ = 0;
  if (given || bytes < kLeastCached) return;
  const auto turn = written_[use]++;
  if (turn % kMeasured == 0) choose(use);
  const bool tries = turn % (turn < kFirst ? kFirstTried : kTried) == 0;
  way_ = tries ? other(best_[use]) : best_[use];
  if (turn % kMeasured == 0) begun_ = Clock::now();
}

void Writing::write(std::byte* to, const std::byte* from, int64_t bytes) {
  bytes_ += bytes;
  way_ == kStreamed ? stream_bytes(to, from, bytes) : copy_bytes(to, from, bytes);
}

void Writing::end(Use use, uint64_t number) {
  if (!chooses_) return;
  if (begun_ && bytes_ > 0) note(writes_[way_], bytes_, Clock::now() - *begun_);
  mark(use, number, way_);
}

void Writing::skip(Use use, uint64_t number) {
  if (chooses_) mark(use, number, kCached);
}

Counts::Ways& Writing::ways(Use use, int rank) const {
  auto& counts = segment_.counts(rank);
  return use == kResult ? counts.result_ways : counts.ways;
}

void Writing::mark(Use use, uint64_t number, Way way) {
  auto& mine = ways(use, rank_);
  const auto slot = segment_.layout().piece_slot(number);
  const auto others = mine.load(std::memory_order_relaxed) & ~(1U << slot);
  mine.store(others | static_cast<uint32_t>(way) << slot, std::memory_order_relaxed);
}

Writing::Way Writing::way(Use use, uint64_t number, int peer) const {
  return static_cast<Way>(ways(use, peer).load(std::memory_order_relaxed) >> segment_.layout().piece_slot(number) & 1);
}

Writing::Way Writing::common_way(Use use, uint64_t number) const {
  std::optional<Way> common;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const auto one = way(use, number, peer);
    if (common.value_or(one) != one) return kUnknown;
    common = one;
  }
  return common.value_or(kUnknown);
}

// The first piece in another way is always measured: the next one may be far.
bool Writing::measures(Use use, Way way, int64_t bytes) {
  if (bytes < kLeastMeasured) return false;
  const bool changes = std::exchange(last_read_[use], way) != way;
  return read_[use]++ % kMeasured == 0 || changes;
}

void Writing::note_reading(Use use, Way way, int64_t bytes, Clock::duration time) {
  note(reads_[use][way], bytes, time);
  const auto mine = reads_[use][way];
  auto& told = segment_.counts(rank_).reads[use][way];
  const auto before = told.load(std::memory_order_relaxed);
  // Each store costs the writers a look at another core's cache.
  if (mine > before + before / 8 || mine < before - before / 8) told.store(mine, std::memory_order_relaxed);
}

// The slowest reader counts: the others wait for it. 0 if it is not known.
uint32_t Writing::cost(Use use, Way way) const {
  uint32_t slowest = 0;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_)
      slowest = std::max(slowest, segment_.counts(peer).reads[use][way].load(std::memory_order_relaxed));
  }
  return writes_[way] == 0 || slowest == 0 ? 0 : writes_[way] + slowest;
}

void Writing::choose(Use use) {
  const auto now = best_[use];
  const auto cost_now = cost(use, now), cost_other = cost(use, other(now));
  if (cost_now == 0 || cost_other == 0) return;
  if (uint64_t{cost_other} * 10 < uint64_t{cost_now} * 9) best_[use] = other(now);  // not back and forth by noise
}

}  // namespace mcr::shm
