// SPDX-License-Identifier: Apache-2.0
// Where slices lie if a reduce_scatter or an all_gather goes through the dimensions of a topology in some order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mcr {

/// The place of each rank's slice; the order has each dimension once. Rank numbers count along dimension 0 first.
///
/// After reduce_scatters in this order (or before all_gathers in the reverse order), rank r has the slice number
/// places[r] of a buffer with one slice per rank. So the slice that rank r has to own must be put there before.
std::vector<int> slice_places(std::span<const int> sizes, std::span<const uint8_t> order);

}  // namespace mcr
