// SPDX-License-Identifier: Apache-2.0
// Barriers by simulation: does each rank wait for all?
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "check.h"
#include "choose/simulate.h"

namespace barriers {

/// Checks that no rank's job ends before all have come. `jobs`: a barrier, on each rank.
inline void check_waits(const std::vector<mcr::Job>& jobs, const mcr::CostModel& model, const mcr::World& world) {
  for (std::size_t late = 0; late < jobs.size(); ++late) {
    std::vector<mcr::Job> delayed(1);
    delayed[0].rank = jobs[late].rank;
    delayed[0].work.alpha = 1000;
    delayed.insert(delayed.end(), jobs.begin(), jobs.end());
    delayed[late + 1].after = {0};
    const auto ends = mcr::simulate(delayed, model, world).ends;
    CHECK(std::ranges::all_of(ends, [](int64_t end) { return end >= 1000; }));
  }
}

}  // namespace barriers
