// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/copies.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace mcr::shm {

bool memory_beats_caches() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

#if defined(__x86_64__)

void stream_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  constexpr int64_t kLine = 64;
  if (bytes < 2 * kLine || to == from) return copy_bytes(to, from, bytes);
  const auto head = static_cast<int64_t>(-reinterpret_cast<std::uintptr_t>(to) & (kLine - 1));
  copy_bytes(to, from, head);
  int64_t done = head;
  for (; done + kLine <= bytes; done += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + done);
    auto* target = reinterpret_cast<__m128i*>(to + done);
    const __m128i parts[] = {_mm_loadu_si128(source), _mm_loadu_si128(source + 1), _mm_loadu_si128(source + 2),
                             _mm_loadu_si128(source + 3)};
    for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, parts[i]);
  }
  _mm_sfence();  // before the caller publishes the piece
  copy_bytes(to + done, from + done, bytes - done);
}

#else

void stream_bytes(std::byte* to, const std::byte* from, int64_t bytes) { copy_bytes(to, from, bytes); }

#endif

}  // namespace mcr::shm
