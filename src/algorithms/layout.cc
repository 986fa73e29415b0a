// SPDX-License-Identifier: Apache-2.0
#include "algorithms/layout.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace mcr {

std::vector<int> slice_places(std::span<const int> sizes, std::span<const uint8_t> order) {
  std::vector<uint8_t> sorted(order.begin(), order.end());
  std::sort(sorted.begin(), sorted.end());
  int64_t ranks = 1;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    ranks *= sizes[k];
    if (sizes[k] < 1 || ranks > (1 << 24) || sorted.size() != sizes.size() || sorted[k] != k) {
      throw Error(ErrorCode::InvalidArgument, "layout: expected sizes of at least 1, at most 2^24 ranks, and each of " +
                                                  std::to_string(sizes.size()) + " dimensions once in the order");
    }
  }
  std::vector<int> places(static_cast<std::size_t>(ranks));
  std::vector<int> coordinates(sizes.size(), 0);
  for (auto& place : places) {
    for (const auto k : order) place = place * sizes[k] + coordinates[k];
    for (std::size_t k = 0; k < sizes.size() && ++coordinates[k] == sizes[k]; ++k) coordinates[k] = 0;
  }
  return places;
}

}  // namespace mcr
