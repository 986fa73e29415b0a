// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/exchanging.h"

#include <algorithm>
#include <bit>

namespace mcr::shm {

namespace {

constexpr int64_t kUnit = 64 << 10;
constexpr int64_t kLeast = 128 << 10;  // bytes of a block: a direct read has a system call, and waits at both ends
// One call in so many tries a way, whichever is the best: more of the first ones, until the ways are known.
constexpr uint64_t kFirst = 48, kFirstTried = 4, kTried = 64;

}  // namespace

Exchanging::Exchanging(bool streams, bool reads) {
  if (reads) ways_.push_back(Writing::kDirect);
  if (streams) ways_.push_back(Writing::kStreamed);
  ways_.push_back(Writing::kCached);
}

Exchanging::Kind& Exchanging::kind(const Blocks& blocks) {
  const auto size = static_cast<std::size_t>(std::bit_width(static_cast<uint64_t>(blocks.longest() / kLeast))) - 1;
  return kinds_[blocks.parts() ? 1 : 0][std::min<std::size_t>(size, kClasses - 1)];
}

std::optional<Exchanging::Way> Exchanging::begin(const Blocks& blocks, int size) {
  running_ = nullptr;
  if (ways_.size() < 2 || blocks.reduces() || blocks.rooted() || blocks.longest() < kLeast) return std::nullopt;
  running_ = &kind(blocks);
  if (running_->calls == 0) {
    // A block that several ranks read is better copied into shared memory once.
    const bool read_once = blocks.parts() || size == 2;
    running_->best = read_once || ways_[0] != Writing::kDirect ? ways_[0] : ways_[1];
  }
  bytes_ = blocks.longest();
  alike_ = true;
  copying_ = {};
  return way_ = next(*running_);
}

// A way that is so many times slower than the best one is tried so many times less often.
Exchanging::Way Exchanging::next(Kind& kind) const {
  const auto call = kind.calls++;
  const auto interval = call < kFirst ? kFirstTried : kTried;
  if (call % interval != 0) return kind.best;
  const auto trial = call / interval;
  const auto tried = ways_[trial % ways_.size()];
  const auto cost = kind.costs[tried].median, least = kind.costs[kind.best].median;
  const auto slower = cost == 0 || least == 0 ? 1 : std::max<uint32_t>(1, cost / least);
  return trial / ways_.size() % slower == 0 ? tried : kind.best;
}

void Exchanging::Costs::add(uint32_t cost) {
  last[count++ % last.size()] = cost;
  auto known = last;
  const auto end = known.begin() + std::min<std::size_t>(count, last.size());
  const auto middle = known.begin() + (end - known.begin()) / 2;
  std::nth_element(known.begin(), middle, end);
  median = *middle;
}

void Exchanging::end() {
  if (running_ == nullptr || !alike_) return;
  const auto cost = copying_.count() * kUnit / bytes_;
  running_->costs[way_].add(static_cast<uint32_t>(std::clamp<int64_t>(cost, 1, 1 << 30)));
  choose(*running_);
}

void Exchanging::choose(Kind& kind) const {
  const auto now = kind.costs[kind.best].median;
  if (now == 0) return;
  for (const auto way : ways_) {
    const auto cost = kind.costs[way].median;
    const auto least = kind.costs[kind.best].median;
    if (cost != 0 && cost < least && uint64_t{cost} * 20 < uint64_t{now} * 19) kind.best = way;  // not for noise
  }
}

}  // namespace mcr::shm
