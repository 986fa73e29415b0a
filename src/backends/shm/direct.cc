// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/direct.h"

#include <sys/uio.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace mcr::shm {

bool read_memory(pid_t process, const std::byte* from, std::byte* to, int64_t bytes) {
  while (bytes > 0) {
    const iovec local{to, static_cast<std::size_t>(bytes)};
    const iovec remote{const_cast<std::byte*>(from), static_cast<std::size_t>(bytes)};
    const auto moved = process_vm_readv(process, &local, 1, &remote, 1, 0);
    if (moved <= 0) {
      if (moved < 0 && errno == ESRCH) return false;
      throw Error(ErrorCode::Backend, "shm: the memory of process " + std::to_string(process) + " cannot be read: " +
                                          std::system_category().message(moved < 0 ? errno : EFAULT));
    }
    from += moved;
    to += moved;
    bytes -= moved;
  }
  return true;
}

Reading read_offered(pid_t process, const std::byte* from, std::byte* to, int64_t bytes, Counter& given_up,
                     uint64_t before) {
  std::optional<Error> problem;
  bool there = false;
  try {
    there = read_memory(process, from, to, bytes);
  } catch (const Error& error) {
    problem = error;
  }
  // A read-modify-write, which is not done before the memory has been read.
  if (given_up.fetch_add(0) != before) return Reading::GivenUp;
  if (problem) throw Error(*problem);
  return there ? Reading::Done : Reading::Ended;
}

Direct::Direct(Segment& segment, Pieces& pieces, int rank, std::vector<pid_t> processes)
    : segment_(segment),
      pieces_(pieces),
      rank_(rank),
      size_(segment.layout().ranks()),
      processes_(std::move(processes)) {}

// A slot has a cache line or more for each rank.
Direct::Offer& Direct::offer(int rank, uint64_t number) {
  return *reinterpret_cast<Offer*>(segment_.piece(rank, number));
}

void Direct::make_offer(const Blocks& blocks, uint64_t number) {
  auto& offer = this->offer(rank_, number);
  offer.withdrawn.store(0, std::memory_order_relaxed);
  auto* const addresses = &offer.blocks[0];
  for (int peer = 0; peer < size_; ++peer) addresses[peer] = blocks.given(peer);
  pieces_.own().copied_in.store(number + 1, std::memory_order_release);
  open_ = &offer;
}

// Reads one chunk of a peer's block; false if the peer has ended, or has not offered it yet.
bool Direct::read(const Blocks& blocks, Position& position, int peer) {
  if (!pieces_.one(peer, &Pieces::Known::copied_in, &Counts::copied_in, *position.number + 1)) return false;
  auto& offer = this->offer(peer, *position.number);
  const auto* const addresses = &offer.blocks[0];
  const auto bytes = std::min(blocks.taken_length(peer) - position.offset, kChunk);
  const auto reading = read_offered(processes_[static_cast<std::size_t>(peer)], addresses[rank_] + position.offset,
                                    blocks.taken(peer) + position.offset, bytes, offer.withdrawn, 0);
  if (reading == Reading::GivenUp) {
    throw Error(ErrorCode::Backend, "shm: rank " + std::to_string(peer) + " of the group has given up this call");
  }
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
    make_offer(blocks, number);
    position.offered = published = true;
  }
  if (!position.taken) {
    if (!take(blocks, position)) return false;
    position.taken = published = true;
    pieces_.own().finished.store(number + 1, std::memory_order_release);
  }
  if (!pieces_.all(&Pieces::Known::finished, &Counts::finished, number + 1)) return false;
  open_ = nullptr;
  pieces_.end(number + 1);
  return true;
}

void Direct::withdraw() {
  if (open_ == nullptr) return;
  std::exchange(open_, nullptr)->withdrawn.exchange(1);
}

}  // namespace mcr::shm
