// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "backends/c10d/hosts.h"
#include "check.h"

using mcr::exchange_sends_no_more;

namespace {

// The hosts of ranks, from the number of ranks on each.
std::vector<uint64_t> hosts(const std::vector<int>& ranks) {
  std::vector<uint64_t> all;
  for (std::size_t host = 0; host < ranks.size(); ++host) all.insert(all.end(), ranks[host], 7 * host);
  return all;
}

}  // namespace

TEST(on_one_host_an_exchange_sends_nothing) {
  for (const int ranks : {1, 2, 3, 8, 64}) CHECK(exchange_sends_no_more(hosts({ranks})));
}

TEST(with_one_or_two_ranks_per_host_an_exchange_sends_no_more_than_a_ring) {
  CHECK(exchange_sends_no_more(hosts({1, 1})));
  CHECK(exchange_sends_no_more(hosts(std::vector<int>(9, 1))));
  CHECK(exchange_sends_no_more(hosts({2, 1})));
  CHECK(exchange_sends_no_more(hosts(std::vector<int>(9, 2))));
}

TEST(with_more_ranks_per_host_it_depends_on_the_other_hosts) {
  CHECK(exchange_sends_no_more(hosts({3, 1})));   // 3 of 6
  CHECK(exchange_sends_no_more(hosts({3, 3})));   // 9 of 10
  CHECK(!exchange_sends_no_more(hosts({4, 4})));  // 16 of 14
  CHECK(!exchange_sends_no_more(hosts({3, 3, 3})));
  CHECK(!exchange_sends_no_more(hosts({8, 1, 1, 1})));
}

TEST(the_order_of_ranks_does_not_matter) { CHECK(exchange_sends_no_more(std::vector<uint64_t>{5, 9, 5, 9})); }
