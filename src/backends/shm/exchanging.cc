// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/exchanging.h"

#include <algorithm>
#include <bit>

namespace mcr::shm {

namespace {

constexpr int64_t kUnit = 64 << 10;
constexpr int64_t kLeast = 128 << 10;  // bytes of a block: a direct read has a system call, and waits at both ends
// So many calls in a row try a way; after so many in the best way, another one is tried.
constexpr uint64_t kTrial = 8, kBetweenTrials = 256;
// The first rank decides at the end of a call about the next but one.
constexpr uint64_t kAhead = 2;

// A change of the way: the number of the first call in the new way, the old way, the new one.
struct Change {
  uint64_t from;
  Writing::Way before, after;

  static Change of(uint64_t word) {
    return {word >> 4, static_cast<Writing::Way>(word >> 2 & 3), static_cast<Writing::Way>(word & 3)};
  }
  uint64_t word() const { return from << 4 | static_cast<uint64_t>(before) << 2 | static_cast<uint64_t>(after); }
  Writing::Way way(uint64_t call) const { return call < from ? before : after; }
};

}  // namespace

void Exchanging::Cost::add(uint32_t time) {
  last_[count_++ % last_.size()] = time;
  auto sorted = last_;
  const auto known = std::min(count_, last_.size());
  const auto third = std::min<std::size_t>(2, known - 1);
  std::nth_element(sorted.begin(), sorted.begin() + third, sorted.begin() + known);
  value_ = sorted[third];
}

Exchanging::Exchanging(Segment& segment, int rank, bool streams, bool reads)
    : segment_(segment), rank_(rank), size_(segment.layout().ranks()) {
  if (reads) ways_.push_back(Writing::kDirect);
  if (streams) ways_.push_back(Writing::kStreamed);
  ways_.push_back(Writing::kCached);
}

Exchanging::Kind& Exchanging::kind(const Blocks& blocks) {
  constexpr std::size_t kClasses = kExchanges / 2;
  const auto size = static_cast<std::size_t>(std::bit_width(static_cast<uint64_t>(blocks.longest() / kLeast))) - 1;
  return kinds_[(blocks.parts() ? kClasses : 0) + std::min(size, kClasses - 1)];
}

Counter& Exchanging::announced(const Kind& kind) const { return segment_.counts(0).exchanges[&kind - kinds_.data()]; }

// A block that several ranks read is better copied into shared memory once.
Exchanging::Way Exchanging::first_way(const Blocks& blocks) const {
  const bool read_once = blocks.parts() || size_ == 2;
  return read_once || ways_[0] != Writing::kDirect ? ways_[0] : ways_[1];
}

std::optional<Exchanging::Way> Exchanging::begin(const Blocks& blocks) {
  if (ways_.size() < 2 || blocks.reduces() || blocks.rooted() || blocks.longest() < kLeast) return std::nullopt;
  running_ = &kind(blocks);
  bytes_ = blocks.longest();
  counts_ = true;
  copying_ = {};
  const auto word = announced(*running_).load(std::memory_order_relaxed);
  way_ = word == 0 ? first_way(blocks) : Change::of(word).way(running_->calls);
  ++running_->calls;
  return way_;
}

void Exchanging::end() {
  if (rank_ != 0 || !counts_) return;
  const auto time = copying_.count() * kUnit / bytes_;
  running_->costs[way_].add(static_cast<uint32_t>(std::clamp<int64_t>(time, 1, 1 << 30)));
  choose(*running_);
}

// After a call, whose way is `way_`.
void Exchanging::choose(Kind& kind) {
  const auto word = announced(kind).load(std::memory_order_relaxed);
  const auto since = word == 0 ? 0 : Change::of(word).from;
  if (kind.calls <= since) return;  // the last change is still to come
  const auto calls = kind.calls - since;
  if (kind.trying && calls < kTrial) return;
  kind.best = cheapest(kind);
  if (kind.trying || calls >= kBetweenTrials) {
    const auto trial = kind.trying && kind.trials >= ways_.size() ? std::nullopt : next_trial(kind);
    kind.trying = trial.has_value();
    if (trial) kind.costs[*trial].forget();
    announce(kind, trial.value_or(kind.best));
  } else if (kind.best != way_) {
    announce(kind, kind.best);
  }
}

void Exchanging::announce(Kind& kind, Way way) {
  const Change change{kind.calls - 1 + kAhead, way_, way};
  announced(kind).store(change.word(), std::memory_order_relaxed);
}

// The ways in turn; one that is so many times slower than the best one so many times less often.
std::optional<Exchanging::Way> Exchanging::next_trial(Kind& kind) const {
  const auto turn = ++kind.trials;
  const auto way = ways_[turn % ways_.size()];
  const auto cost = kind.costs[way].value(), least = kind.costs[kind.best].value();
  const auto slower = cost == 0 || least == 0 ? 1 : std::max<uint32_t>(1, cost / least);
  if (turn / ways_.size() % slower != 0) return std::nullopt;
  return way;
}

// Small differences may be noise.
Exchanging::Way Exchanging::cheapest(const Kind& kind) const {
  auto best = way_;
  for (const auto way : ways_) {
    const auto cost = kind.costs[way].value();
    if (cost != 0 && uint64_t{cost} * 20 < uint64_t{kind.costs[best].value()} * 19) best = way;
  }
  return best;
}

}  // namespace mcr::shm
