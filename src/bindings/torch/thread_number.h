// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace mcr::python {

/// The number of this thread, from 1, which no other thread gets: the system gives a thread's identity to later ones.
inline uint64_t thread_number() {
  static std::atomic<uint64_t> threads{0};
  thread_local const uint64_t own = ++threads;
  return own;
}

}  // namespace mcr::python
