// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/offers.h"

#include <string>

#include "base/error.h"

namespace mcr::shm {

void Offers::make(const Blocks& blocks, uint64_t first, const std::byte* result) {
  auto& offer = segment_.offer(rank_);
  offer.withdrawn.store(0, std::memory_order_relaxed);
  offer.result = result;
  for (int peer = 0; peer < segment_.layout().ranks(); ++peer) offer.blocks()[peer] = blocks.given(peer);
  segment_.counts(rank_).offered.store(first + 1, std::memory_order_relaxed);
  open_ = true;
}

// A read-modify-write, which is not done before the memory has been read.
void Offers::check(int rank) {
  if (withdrawn(rank).fetch_add(0) != 0) given_up(rank);
}

void Offers::given_up(int rank) {
  throw Error(ErrorCode::Backend, "shm: rank " + std::to_string(rank) + " of the group has given up this call");
}

void Offers::withdraw() {
  if (open_) withdrawn(rank_).exchange(1);
  open_ = false;
}

}  // namespace mcr::shm
