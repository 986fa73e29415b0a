// SPDX-License-Identifier: Apache-2.0
#include "passes/schedule/iterations.h"

#include <algorithm>
#include <utility>

namespace mcr {

std::size_t IterationFinder::add(uint64_t signature, uint64_t group) {
  for (auto* values : {&signatures_, &groups_}) {
    if (values->size() == 2 * kLongest) values->erase(values->begin(), values->begin() + kLongest);
  }
  signatures_.push_back(signature);
  groups_.push_back(group);
  const auto newest = signatures_.size() - 1;
  for (std::size_t period = 1; period <= std::min(newest, kLongest); ++period) {
    auto& run = runs_[period];
    const auto before = newest - period;
    run = signatures_[before] == signature && groups_[before] == group ? run + 1 : 0;
  }
  return marks_ ? marked() : found();
}

// The first period is not in a run, and this call is the first of the next iteration.
std::size_t IterationFinder::found() const {
  for (std::size_t period = 1; period <= std::min(signatures_.size() - 1, kLongest); ++period) {
    const auto run = runs_[period];
    if (run > (kRepetitions - 1) * period && run > kLeast) return least_rotation(period) ? period : 0;
  }
  return 0;
}

std::size_t IterationFinder::marked() {
  ++since_mark_;
  if (!std::exchange(marked_, false)) return 0;
  const auto period = std::exchange(since_mark_, 1) - 1;
  if (period == 0 || period > kLongest) return 0;
  return runs_[period] > (kRepetitions - 1) * period ? period : 0;
}

void IterationFinder::mark() { marks_ = marked_ = true; }

// Whether the iteration that ends before the newest call is the least of its rotations.
bool IterationFinder::least_rotation(std::size_t period) const {
  const auto last = signatures_.end() - 1;
  const std::span<const uint64_t> whole(last - static_cast<std::ptrdiff_t>(period), last);
  for (std::size_t shift = 1; shift < period; ++shift) {
    for (std::size_t i = 0; i < period; ++i) {
      const auto other = whole[(shift + i) % period];
      if (other < whole[i]) return false;
      if (other > whole[i]) break;
    }
  }
  return true;
}

void IterationFinder::reset() {
  signatures_.clear();
  groups_.clear();
  std::ranges::fill(runs_, 0);
}

}  // namespace mcr
