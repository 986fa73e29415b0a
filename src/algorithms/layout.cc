// SPDX-License-Identifier: Apache-2.0
#include "algorithms/layout.h"

namespace mcr {

std::vector<int> slice_places(std::span<const int> sizes, std::span<const uint8_t> order) {
  std::size_t ranks = 1;
  for (const int size : sizes) ranks *= static_cast<std::size_t>(size);
  std::vector<int> places(ranks);
  std::vector<int> coordinates(sizes.size(), 0);
  for (auto& place : places) {
    for (const auto k : order) place = place * sizes[k] + coordinates[k];
    for (std::size_t k = 0; k < sizes.size() && ++coordinates[k] == sizes[k]; ++k) coordinates[k] = 0;
  }
  return places;
}

}  // namespace mcr
