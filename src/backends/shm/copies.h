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

/// Like copy_bytes(), but writes past the caches.
void stream_bytes(std::byte* to, const std::byte* from, int64_t bytes);

/// Whether data for another core is better written past the caches, because a core reads memory faster than another
/// core's cache. Measured on AMD's processors.
bool memory_beats_caches();

}  // namespace mcr::shm
