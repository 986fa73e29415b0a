// SPDX-License-Identifier: Apache-2.0
// Element types in memory and in arithmetic, as reductions and codecs load and store them.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>

namespace mcr {

// Every element type has a storage type S and a type T to compute in: load(S) -> T, store<S>(T) -> S. All conversions
// are free of branches, so that the compiler can vectorize the loops that use them.

struct E4M3 {  // float8_e4m3fn: no infinity, one NaN of each sign
  uint8_t bits;
};
struct E5M2 {  // float8_e5m2: the upper half of a Half
  uint8_t bits;
};
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};
struct Flag {
  uint8_t byte;
};
template <class T>
struct Complex {
  T re, im;
};

/// `condition ? yes : no` in arithmetic: a branch would prevent vectorization.
constexpr uint32_t choose(bool condition, uint32_t yes, uint32_t no) {
  return no ^ ((yes ^ no) & -static_cast<uint32_t>(condition));
}

inline float load(Half half) {
  const uint32_t exponent = half.bits & 0x7C00u;
  const uint32_t mantissa = half.bits & 0x03FFu;
  const uint32_t rebias = choose(exponent == 0x7C00u, 0x70000000u, 0x38000000u);  // infinities, NaNs: all bits set
  const uint32_t normal = ((exponent | mantissa) << 13) + rebias;
  // Computed from an integer, because a thread may flush subnormal floats to zero.
  const float small = static_cast<float>(static_cast<int32_t>(mantissa)) * 0x1p-24f;
  const uint32_t magnitude = choose(exponent == 0, std::bit_cast<uint32_t>(small), normal);
  return std::bit_cast<float>(magnitude | (static_cast<uint32_t>(half.bits & 0x8000u) << 16));
}

inline float load(E5M2 value) { return load(Half{static_cast<uint16_t>(value.bits << 8)}); }

inline float load(E4M3 value) {
  const uint32_t low = value.bits & 0x7Fu;
  const uint32_t normal = (low << 20) + choose(low == 0x7Fu, 0x78000000u, 0x3C000000u);  // NaN: all bits set
  const float small = static_cast<float>(static_cast<int32_t>(low)) * 0x1p-9f;
  const uint32_t magnitude = choose(low < 8, std::bit_cast<uint32_t>(small), normal);
  return std::bit_cast<float>(magnitude | (static_cast<uint32_t>(value.bits & 0x80u) << 24));
}

inline float load(Brain brain) { return std::bit_cast<float>(static_cast<uint32_t>(brain.bits) << 16); }
inline bool load(Flag flag) { return flag.byte != 0; }
template <class T>
T load(T value) {
  return value;
}

template <class S, class T>
S store(T value) {
  return static_cast<S>(value);
}

/// Rounds to nearest, ties to even, at bit `drop` of a float's magnitude.
constexpr uint32_t round_off(uint32_t magnitude, int drop) {
  return (magnitude + (1u << (drop - 1)) - 1 + ((magnitude >> drop) & 1u)) >> drop;
}

/// Converts a float's magnitude to a type with fewer bits of mantissa and exponent; it must be in that type's range.
/// Rounding up beyond the largest number carries into the exponent and yields infinity, as it should.
template <int mantissa, int bias>
uint32_t rounded(uint32_t magnitude) {
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - bias) << 23;
  // At this exponent a float's unit in the last place is the type's smallest subnormal, so the addition rounds.
  constexpr uint32_t kShift = static_cast<uint32_t>(127 + 24 - bias - mantissa) << 23;
  const uint32_t normal = round_off(magnitude - kRebias, 23 - mantissa);
  const float shifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kShift);
  const uint32_t small = std::bit_cast<uint32_t>(shifted) - kShift;
  return choose(magnitude < kRebias + (1u << 23), small, normal);
}

template <std::same_as<Half> S>
S store(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t special = choose(magnitude > 0x7F800000u, 0x7E00u, 0x7C00u);
  const uint32_t result = choose(magnitude >= 0x47800000u, special, rounded<10, 15>(magnitude));
  return {static_cast<uint16_t>(result | ((bits >> 16) & 0x8000u))};
}

// Overflow gives what torch's casts give: infinity in e5m2; in e4m3fn, which has none, the largest number (torch >=
// 2.13).

template <std::same_as<E5M2> S>
S store(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t special = choose(magnitude > 0x7F800000u, 0x7Fu, 0x7Cu);
  const uint32_t result = choose(magnitude >= 0x47800000u, special, rounded<2, 15>(magnitude));
  return {static_cast<uint8_t>(result | ((bits >> 24) & 0x80u))};
}

template <std::same_as<E4M3> S>
S store(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t special = choose(magnitude > 0x7F800000u, 0x7Fu, 0x7Eu);
  const uint32_t result = choose(magnitude >= 0x43E00000u, special, rounded<3, 7>(magnitude));  // from 448 up
  return {static_cast<uint8_t>(result | ((bits >> 24) & 0x80u))};
}

template <std::same_as<Brain> S>
S store(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t result = choose(magnitude > 0x7F800000u, 0x7FC0u, round_off(magnitude, 16));
  return {static_cast<uint16_t>(result | ((bits >> 16) & 0x8000u))};
}

template <std::same_as<Flag> S>
S store(bool value) {
  return {static_cast<uint8_t>(value)};
}

}  // namespace mcr
