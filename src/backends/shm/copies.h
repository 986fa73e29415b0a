// SPDX-License-Identifier: Apache-2.0
// Copies between the tensors of callers and shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace mcr::shm {

inline void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

/// Like copy_bytes(), but writes past the caches: for results that would not fit into them, so that writing does not
/// read the memory first.
void stream_bytes(std::byte* to, const std::byte* from, int64_t bytes);

/// Copies a piece for another rank into shared memory. Where a core reads memory faster than another core's cache, the
/// piece goes past this core's cache: measured on AMD's processors, where it takes 0.6 × the time for 64 KiB.
void hand_over(std::byte* to, const std::byte* from, int64_t bytes);

/// Whether results of `bytes` on each of the ranks exceed the cache that their cores share.
bool exceeds_cache(int64_t bytes, int ranks);

}  // namespace mcr::shm
