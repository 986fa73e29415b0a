// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/direct.h"

#include <algorithm>

namespace mcr::shm {

Direct::Direct(Segment& segment, Pieces& pieces, Offers& offers, const PeerMemory& memory, int rank)
    : pieces_(pieces), offers_(offers), memory_(memory), rank_(rank), size_(segment.layout().ranks()) {}

// Reads one chunk of a peer's block; false if the peer has ended, or has not offered it yet.
bool Direct::read(const Blocks& blocks, Position& position, int peer) {
  if (!pieces_.one(peer, &Pieces::Known::copied_in, &Counts::copied_in, *position.number + 1)) return false;
  if (position.offset == 0) pieces_.check(peer, *position.number, blocks.digest());
  const auto bytes = std::min(blocks.taken_length(peer) - position.offset, kChunk);
  const auto reading = memory_.read(peer, offers_.block(peer) + position.offset, blocks.taken(peer) + position.offset,
                                    bytes, offers_.withdrawn(peer), 0);
  if (reading == Reading::GivenUp) Offers::given_up(peer);
  if (reading == Reading::Ended) return false;
  position.offset += bytes;
  return true;
}

bool Direct::take(const Blocks& blocks, Position& position) {
  for (; position.next < size_; ++position.next, position.offset = 0) {
    const int peer = (rank_ + position.next) % size_;
    const auto length = blocks.taken_length(peer);
    if (peer == rank_) {
      copy_bytes(blocks.taken(peer), blocks.given(peer), length);
      continue;
    }
    while (position.offset < length) {
      if (!read(blocks, position, peer)) return false;
    }
  }
  return true;
}

bool Direct::advance(const Blocks& blocks, Position& position, bool& published) {
  if (!position.number) position.number = pieces_.take(1);
  const auto number = *position.number;
  if (!position.offered) {
    if (!pieces_.free(number)) return false;
    pieces_.begin(number, blocks.digest());
    offers_.make(blocks, number, nullptr);
    pieces_.own().copied_in.store(number + 1, std::memory_order_release);
    position.offered = published = true;
  }
  if (!position.taken) {
    if (!take(blocks, position)) return false;
    position.taken = published = true;
    pieces_.own().finished.store(number + 1, std::memory_order_release);
  }
  if (!pieces_.all(&Pieces::Known::finished, &Counts::finished, number + 1)) return false;
  offers_.end();
  pieces_.end(number + 1);
  return true;
}

}  // namespace mcr::shm
