// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/steps.h"

#include "backends/shm/pieces.h"
#include "base/reduce.h"

namespace mcr::shm {

namespace {

constexpr int kDigestAt = 48;
constexpr uint64_t kNumber = (uint64_t{1} << kDigestAt) - 1;

// Fetches the cache line that this rank writes next: the write then reaches the other ranks without delay.
void prepare_write(const Slot& slot) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(slot));
#else
  __builtin_prefetch(&slot, 1);
#endif
}

}  // namespace

Steps::Steps(Segment& segment, History& history, int rank)
    : segment_(segment),
      history_(history),
      rank_(rank),
      size_(segment.layout().ranks()),
      reached_(static_cast<std::size_t>(size_)),
      sources_(static_cast<std::size_t>(size_)) {}

bool Steps::reached(int rank, uint64_t steps) {
  auto& known = reached_[static_cast<std::size_t>(rank)];
  if (known >= steps) return true;
  if ((segment_.slot(rank, steps - 1).step.load(std::memory_order_acquire) & kNumber) < steps) return false;
  known = steps;
  return true;
}

// For a step some time ago: later ones have probably been reached too, and one look at a rank's slots then serves
// several steps.
bool Steps::reached_before(int rank, uint64_t steps) {
  const auto ahead = segment_.layout().step_slots() / 2;
  if (reached_[static_cast<std::size_t>(rank)] >= steps) return true;
  return reached(rank, steps + ahead) || reached(rank, steps);
}

// All ranks have finished the step that used the slot before.
bool Steps::writable() {
  const auto slots = segment_.layout().step_slots();
  if (step_ < slots) return true;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && !reached_before(peer, step_ + 2 - slots)) return false;
  }
  return true;
}

// For a rank that has reached the current step.
void Steps::check(int rank) {
  const auto step = segment_.slot(rank, step_).step.load(std::memory_order_relaxed);
  if (((step ^ digest_) & ~kNumber) != 0) [[unlikely]]
    differs(rank);
}

void Steps::write(const Blocks& blocks) {
  digest_ = history_.add(blocks) << kDigestAt;
  auto& slot = segment_.slot(rank_, step_);
  auto* const data = slot.at(blocks.total());
  if (blocks.gives(rank_)) {
    if (!blocks.parts()) {
      copy_bytes(data, blocks.given(rank_), blocks.length(rank_));
    } else {
      for (int peer = 0; peer < size_; ++peer) {
        if (peer != rank_) copy_bytes(data + blocks.offset(peer), blocks.given(peer), blocks.length(peer));
      }
    }
  }
  slot.step.store(digest_ | (step_ + 1), std::memory_order_release);
}

// In rank order, so that all ranks get the same bits.
bool Steps::combine(const Call& call, const Blocks& blocks) {
  const auto total = blocks.total();
  const auto offset = blocks.parts() ? blocks.offset(rank_) : 0;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) {
      if (!reached(peer, step_ + 1)) return false;
      check(peer);
    }
    sources_[static_cast<std::size_t>(peer)] =
        peer == rank_ ? blocks.given(rank_) : segment_.slot(peer, step_).at(total) + offset;
  }
  combine_all(blocks.taken(rank_), sources_, blocks.length(rank_) / size_of(call.dtype), call.dtype, call.red);
  return true;
}

bool Steps::read(const Call& call, const Blocks& blocks, Position& position) {
  if (!blocks.takes(rank_)) return true;
  if (blocks.reduces()) return combine(call, blocks);
  for (; position.next < size_; ++position.next) {
    const int peer = (rank_ + position.next) % size_;
    if (!blocks.gives(peer)) continue;
    if (peer != rank_) {
      if (!reached(peer, step_ + 1)) return false;
      check(peer);
    }
    const auto* const from =
        peer == rank_ ? blocks.given(rank_)
                      : segment_.slot(peer, step_).at(blocks.total()) + (blocks.parts() ? blocks.offset(rank_) : 0);
    copy_bytes(blocks.taken(peer), from, blocks.taken_length(peer));
  }
  return true;
}

bool Steps::advance(const Call& call, const Blocks& blocks, Position& position, bool& published) {
  if (!position.written) {
    if (!writable()) return false;
    write(blocks);
    position.written = published = true;
  }
  if (!read(call, blocks, position)) return false;
  ++step_;
  prepare_write(segment_.slot(rank_, step_));
  // The root does not wait for the others, so its next data may have come already.
  if (!blocks.gives(rank_)) __builtin_prefetch(&segment_.slot(call.root, step_));
  return true;
}

}  // namespace mcr::shm
