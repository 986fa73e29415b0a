// SPDX-License-Identifier: Apache-2.0
#include "elements.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace standin {

namespace {

// What C++ computes in itself. Integers wrap around, as on a GPU.
template <class T>
struct Native {
  using Value = T;
  static constexpr std::size_t kSize = sizeof(T);
  static T load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  static void store(std::byte* to, T value) { std::memcpy(to, &value, sizeof(T)); }
};

// A floating-point format of `exponent` and `mantissa` bits. Finite: it has no infinity, and one NaN.
template <class Bits, int exponent, int mantissa, bool finite = false>
struct Small {
  using Value = float;
  static constexpr std::size_t kSize = sizeof(Bits);
  static constexpr int kTop = (1 << exponent) - 1;
  static constexpr int kBias = kTop / 2;
  static constexpr unsigned kSign = 1u << (exponent + mantissa);
  static constexpr unsigned kNan =
      finite ? kSign - 1 : (static_cast<unsigned>(kTop) << mantissa) | 1u << (mantissa - 1);
  static constexpr unsigned kLargest = finite ? kSign - 2 : (static_cast<unsigned>(kTop) << mantissa);

  static float load(const std::byte* from) {
    const unsigned bits = Native<Bits>::load(from);
    const int power = static_cast<int>(bits >> mantissa) & kTop;
    const int digits = static_cast<int>(bits) & ((1 << mantissa) - 1);
    const float sign = (bits & kSign) != 0 ? -1.0f : 1.0f;
    if (finite ? (bits & (kSign - 1)) == kSign - 1 : power == kTop && digits != 0) return std::nanf("");
    if (!finite && power == kTop) return sign * std::numeric_limits<float>::infinity();
    if (power == 0) return sign * std::ldexp(static_cast<float>(digits), 1 - kBias - mantissa);
    return sign * std::ldexp(static_cast<float>(digits + (1 << mantissa)), power - kBias - mantissa);
  }

  static void store(std::byte* to, float value) {
    Native<Bits>::store(to, static_cast<Bits>(encode(std::fabs(value)) | (std::signbit(value) ? kSign : 0u)));
  }

 private:
  static unsigned encode(float magnitude) {
    if (std::isnan(magnitude)) return kNan;
    if (std::isinf(magnitude)) return kLargest;
    if (magnitude == 0) return 0;  // which has no power of its own
    int power = 0;
    std::frexp(magnitude, &power);
    power = std::max(power - 1, 1 - kBias);
    const double digits = std::nearbyint(std::ldexp(static_cast<double>(magnitude), mantissa - power));
    // With the implicit bit counted in, a carry of the rounding goes into the exponent by itself.
    const double bits = digits + std::ldexp(static_cast<double>(power + kBias - 1), mantissa);
    return static_cast<unsigned>(std::min(bits, static_cast<double>(kLargest)));
  }
};

using Half = Small<uint16_t, 5, 10>;
using Brain = Small<uint16_t, 8, 7>;
using E4m3 = Small<uint8_t, 4, 3, true>;
using E5m2 = Small<uint8_t, 5, 2>;

template <class Action>
auto with(int type, Action action) {
  switch (type) {
    case Int8:
      return action(Native<int8_t>());
    case Uint8:
      return action(Native<uint8_t>());
    case Int32:
      return action(Native<int32_t>());
    case Uint32:
      return action(Native<uint32_t>());
    case Int64:
      return action(Native<int64_t>());
    case Uint64:
      return action(Native<uint64_t>());
    case Float16:
      return action(Half());
    case Float32:
      return action(Native<float>());
    case Float64:
      return action(Native<double>());
    case Bfloat16:
      return action(Brain());
    case Float8e4m3:
      return action(E4m3());
    default:
      return action(E5m2());
  }
}

template <class T>
T apply(int op, T a, T b) {
  if (op == Max) return a > b ? a : b;
  if (op == Min) return a < b ? a : b;
  if constexpr (std::is_integral_v<T>) {
    const auto wide_a = static_cast<uint64_t>(a);
    const auto wide_b = static_cast<uint64_t>(b);
    return static_cast<T>(op == Prod ? wide_a * wide_b : wide_a + wide_b);
  } else {
    return op == Prod ? a * b : a + b;
  }
}

}  // namespace

std::size_t size_of(int type) {
  return with(type, [](auto element) { return decltype(element)::kSize; });
}

void combine(int type, int op, const std::vector<const std::byte*>& parts, std::byte* out, std::size_t count) {
  with(type, [&](auto element) {
    using Element = decltype(element);
    using Value = typename Element::Value;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t place = i * Element::kSize;
      Value value = Element::load(parts[0] + place);
      for (std::size_t rank = 1; rank < parts.size(); ++rank) {
        value = apply<Value>(op, value, Element::load(parts[rank] + place));
      }
      if (op == Avg) value = static_cast<Value>(value / static_cast<Value>(parts.size()));
      Element::store(out + place, value);
    }
  });
}

void scale(int type, const std::byte* factor, std::byte* data, std::size_t count) {
  with(type, [&](auto element) {
    using Element = decltype(element);
    using Value = typename Element::Value;
    for (std::size_t i = 0; i < count; ++i) {
      std::byte* const place = data + i * Element::kSize;
      Element::store(place, apply<Value>(Prod, Element::load(place), Element::load(factor)));
    }
  });
}

}  // namespace standin
