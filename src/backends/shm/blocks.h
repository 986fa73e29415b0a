// SPDX-License-Identifier: Apache-2.0
// A collective as blocks of bytes that ranks send and receive.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "backends/shm/copies.h"
#include "base/call.h"
#include "base/digest.h"

namespace mcr::shm {

/// The work of one turn: bounded, so that the thread soon sees interrupts and timeouts, and other threads have theirs.
struct Burst {
  static constexpr int64_t kFirst = 32 << 20;  // of a call that begins; a wait takes some turns between two looks

  int64_t left = 4 << 20;  // bytes to copy before the turn ends
  bool published = false;  // other ranks may wait for what was done
};

/// The blocks that a rank gives to the other ranks and takes from them. Cheap to make; refers to the call.
class Blocks {
 public:
  Blocks(const Call& call, int rank, int size)
      : call_(call), rank_(rank), size_(size), element_(size_of(call.dtype)), extent_(row(call.op).extent) {}

  bool rooted() const { return row(call_.op).is(kRooted); }
  bool reduces() const { return row(call_.op).is(kReduces); }
  /// Whether a rank gives a separate block to each rank, instead of one block to all.
  bool parts() const { return extent_ == Extent::Scatter || extent_ == Extent::Exchange; }
  bool gives(int rank) const {
    const bool root_gives = call_.op == Op::broadcast || call_.op == Op::scatter;
    return !root_gives || call_.root == rank;
  }
  bool takes(int rank) const {
    const bool root_takes = call_.op == Op::reduce || call_.op == Op::gather;
    return !root_takes || call_.root == rank;
  }

  /// The length of the block that `rank` gives to all ranks, or with parts() that `rank` gets. Known on all ranks.
  int64_t length(int rank) const {
    const auto index = static_cast<std::size_t>(rank);
    switch (extent_) {
      case Extent::None:
        return 0;
      case Extent::Same:
        return call_.out.count * element_;
      case Extent::Gather:
        return (call_.vectored ? call_.out_counts[index] : call_.in.count) * element_;
      case Extent::Scatter:
        return (call_.vectored ? call_.in_counts[index] : call_.out.count) * element_;
      case Extent::Exchange:
        return call_.in.count / size_ * element_;
    }
    return 0;
  }
  int64_t longest() const {
    if (!call_.vectored) return length(0);
    int64_t longest = 0;
    for (int rank = 0; rank < size_; ++rank) longest = std::max(longest, length(rank));
    return longest;
  }
  /// The number of bytes that one rank gives, at most. Known on all ranks.
  int64_t total() const {
    if (!parts()) return longest();
    if (!call_.vectored) return size_ * length(0);
    return offset(size_);
  }
  /// Equal on ranks that have made the same call, and almost certainly different otherwise.
  uint64_t digest() const {
    auto parts = static_cast<uint64_t>(call_.op) | static_cast<uint64_t>(total()) << 24;
    if (reduces()) parts ^= static_cast<uint64_t>(call_.red) << 8 | static_cast<uint64_t>(call_.dtype) << 16;
    auto all = mcr::digest(mcr::digest(0, parts), rooted() ? static_cast<uint64_t>(call_.root) : 0);
    if (call_.vectored) [[unlikely]]
      all = with_counts(all);
    return all;
  }
  /// The offset of the block to `rank` if the blocks are contiguous.
  int64_t offset(int rank) const {
    if (!call_.vectored) return rank * length(0);
    const auto counts = call_.in_counts.first(static_cast<std::size_t>(rank));
    return std::accumulate(counts.begin(), counts.end(), int64_t{0}) * element_;
  }

  /// This rank's block to `rank`, in the caller's memory.
  const std::byte* given(int rank) const {
    if (extent_ == Extent::Same) return at(call_.out, 0);
    if (extent_ == Extent::Gather) return at(call_.in, 0);
    if (call_.vectored) return at(call_.in, call_.in_displs[static_cast<std::size_t>(rank)] * element_);
    return at(call_.in, rank * length(0));
  }
  /// The destination of the block of `rank`, or of the reduced block, in the caller's memory.
  std::byte* taken(int rank) const {
    if (extent_ == Extent::Same || extent_ == Extent::Scatter) return at(call_.out, 0);
    if (call_.vectored) return at(call_.out, call_.out_displs[static_cast<std::size_t>(rank)] * element_);
    return at(call_.out, rank * length(0));
  }
  /// The length of the block that goes to `taken(rank)`.
  int64_t taken_length(int rank) const { return length(parts() ? rank_ : rank); }

 private:
  // Equal counts add nothing: such a call matches one without counts.
  uint64_t with_counts(uint64_t all) const {
    const auto counts = extent_ == Extent::Gather ? call_.out_counts : call_.in_counts;
    if (std::ranges::adjacent_find(counts, std::not_equal_to()) == counts.end()) return all;
    for (const auto count : counts) all = mcr::digest(all, static_cast<uint64_t>(count));
    return all;
  }
  static std::byte* at(const Buffer& buffer, int64_t offset) { return static_cast<std::byte*>(buffer.data) + offset; }

  const Call& call_;
  const int rank_, size_;
  const int64_t element_;
  const Extent extent_;
};

/// The collectives of a group so far, in the order of issue: equal on all its ranks if all their calls were.
class History {
 public:
  /// Adds a call as it begins, and returns 16 bits of this call and of all before it.
  uint64_t add(const Blocks& blocks) {
    calls_ = mcr::digest(calls_, blocks.digest());
    return calls_ >> 48;
  }

 private:
  uint64_t calls_ = 0;
};

}  // namespace mcr::shm
