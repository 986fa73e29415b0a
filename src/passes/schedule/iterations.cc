// SPDX-License-Identifier: Apache-2.0
#include "passes/schedule/iterations.h"

#include <algorithm>

namespace mcr {

std::size_t IterationFinder::add(uint64_t signature, uint64_t group) {
  for (auto* values : {&signatures_, &groups_}) {
    if (values->size() == 2 * kLongest) values->erase(values->begin(), values->begin() + kLongest);
  }
  signatures_.push_back(signature);
  groups_.push_back(group);
  const auto newest = signatures_.size() - 1;
  std::size_t found = 0;
  for (std::size_t period = 1; period <= std::min(newest, kLongest); ++period) {
    auto& run = runs_[period];
    const auto before = newest - period;
    run = signatures_[before] == signature && groups_[before] == group ? run + 1 : 0;
    // The first period is not in the run, and this call is the first of the next iteration.
    if (found == 0 && run > (kRepetitions - 1) * period && run > kLeast) found = period;
  }
  return found != 0 && least_rotation(found) ? found : 0;
}

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
