// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace mcr {

/// The digest of a sequence of values, from that of the values before the last one. A few cycles; not for security.
inline uint64_t digest(uint64_t before, uint64_t value) {
  const uint64_t mixed = (before ^ value) * 0x9e3779b97f4a7c15U;
  return mixed ^ (mixed >> 29U);
}

}  // namespace mcr
