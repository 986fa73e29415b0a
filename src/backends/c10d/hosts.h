// SPDX-License-Identifier: Apache-2.0
// How much algorithms send between hosts.
#pragma once

#include <cstdint>
#include <map>
#include <span>

namespace mcr {

/// Whether no host sends more to other hosts in an all_to_all than in a ring all_reduce of the same data. `hosts` has
/// an identifier for each rank, equal for ranks of one host. For n ranks with S bytes each, a host with k of them sends
/// k * (n - k) / n * S in an all_to_all, and about 2 * (n - 1) / n * S in a ring.
inline bool exchange_sends_no_more(std::span<const uint64_t> hosts) {
  std::map<uint64_t, int64_t> ranks;
  for (const auto host : hosts) ++ranks[host];
  const auto all = static_cast<int64_t>(hosts.size());
  for (const auto& [host, here] : ranks) {
    if (here * (all - here) > 2 * (all - 1)) return false;
  }
  return true;
}

}  // namespace mcr
