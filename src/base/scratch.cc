// SPDX-License-Identifier: Apache-2.0
#include "base/scratch.h"

#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "base/immortal.h"

namespace mcr {

namespace {

constexpr int64_t kLeast = int64_t{1} << 16;     // the allocator caches smaller pieces itself
constexpr int64_t kMostKept = int64_t{1} << 28;  // bytes, over all cached pieces
constexpr int64_t kSlack = 8;                    // a piece may exceed the requested size by an eighth
constexpr int64_t kStale = 256;                  // pieces that came back since a piece has been used last

struct Piece {
  std::unique_ptr<std::byte[]> memory;
  int64_t returned;  // how many pieces have come back before
};

struct Pool {
  std::mutex mutex;
  std::multimap<int64_t, Piece> pieces;  // by size; guarded by mutex
  int64_t bytes = 0;                     // over all pieces; guarded by mutex
  int64_t returned = 0;                  // pieces; guarded by mutex
};

// Never destroyed: operations may still end during process exit.
Pool& pool() {
  static auto& made = immortal<Pool>();
  return made;
}

// Moves the pieces of sizes that are used no more; returns their bytes. Call with the mutex held.
int64_t take_stale(decltype(Pool::pieces)& pieces, int64_t returned, decltype(Pool::pieces)& stale) {
  int64_t bytes = 0;
  for (auto next = pieces.begin(); next != pieces.end();) {
    const auto piece = next++;
    if (returned - piece->second.returned < kStale) continue;
    bytes += piece->first;
    stale.insert(pieces.extract(piece));
  }
  return bytes;
}

}  // namespace

Scratch::Scratch(int64_t bytes) : bytes_(bytes) {
  if (bytes >= kLeast) {
    const std::lock_guard lock(pool().mutex);
    const auto least = pool().pieces.lower_bound(bytes);
    if (least != pool().pieces.end() && least->first <= bytes + bytes / kSlack) {
      // The latest of this size, which is the most likely to be in the core's caches.
      const auto found = std::prev(pool().pieces.upper_bound(least->first));
      bytes_ = found->first;
      memory_ = std::move(found->second.memory);
      pool().bytes -= bytes_;
      pool().pieces.erase(found);
      return;
    }
  }
  memory_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
}

Scratch& Scratch::operator=(Scratch&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(memory_, other.memory_);
  return *this;
}

Scratch::~Scratch() { give_up(); }

void Scratch::give_up() noexcept {
  if (memory_ == nullptr || bytes_ < kLeast) return;
  decltype(Pool::pieces) stale;  // freed outside the mutex
  try {
    const std::lock_guard lock(pool().mutex);
    auto& [mutex, pieces, bytes, returned] = pool();
    ++returned;
    if (bytes + bytes_ > kMostKept) bytes -= take_stale(pieces, returned, stale);
    if (bytes + bytes_ > kMostKept) return;
    pieces.emplace(bytes_, Piece{std::move(memory_), returned});
    bytes += bytes_;
  } catch (...) {  // no memory for the list: this piece is freed
  }
}

}  // namespace mcr
