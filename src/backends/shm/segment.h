// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "backends/shm/layout.h"
#include "base/shared_memory.h"

namespace mcr::shm {

/// Bounds the memory of a group, in bytes.
inline constexpr const char* kBound = "MCR_DL_SHM_BYTES";

/// A rank's memory that other ranks read (Offers). Addresses are those of its process.
struct alignas(kLine) Offer {
  Counter withdrawn;
  const std::byte* result;

  /// By rank; there is space for all of them behind the offer.
  const std::byte** blocks() { return reinterpret_cast<const std::byte**>(this + 1); }
};

/// The shared memory of a group, with access to its parts.
class Segment {
 public:
  Segment(const Layout& layout, std::shared_ptr<Memory> memory) : layout_(layout), memory_(std::move(memory)) {}

  const Layout& layout() const { return layout_; }
  std::atomic<uint32_t>& sleepers() { return part<std::atomic<uint32_t>>(layout_.sleepers_at()); }
  Bell& bell(int rank) { return part<Bell>(layout_.bell_at(rank)); }
  Slot& slot(int rank, uint64_t step) { return part<Slot>(layout_.slot_at(rank, step)); }
  Counts& counts(int rank) { return part<Counts>(layout_.counters_at(rank)); }
  Offer& offer(int rank) { return part<Offer>(layout_.offer_at(rank)); }
  std::byte* piece(int rank, uint64_t number) { return memory_->at(layout_.piece_at(rank, number)); }
  Ring& ring(int from, int to) { return part<Ring>(layout_.ring_at(from, to)); }
  std::byte* packets(int from, int to) {
    return memory_->at(layout_.ring_at(from, to) + static_cast<int64_t>(sizeof(Ring)));
  }

 private:
  // Memory of zeros is a valid object of each of these types.
  template <class T>
  T& part(int64_t offset) {
    return *reinterpret_cast<T*>(memory_->at(offset));
  }

  Layout layout_;
  std::shared_ptr<Memory> memory_;
};

}  // namespace mcr::shm
