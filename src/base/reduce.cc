// SPDX-License-Identifier: Apache-2.0
#include "base/reduce.h"

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "base/elements.h"
#include "base/error.h"
#include "base/reductions.h"
#include "base/vectorized.h"

namespace mcr {
namespace {

using namespace reductions;

template <class T>
T quotient(T value, int64_t divisor) {
  if constexpr (std::unsigned_integral<T>) {
    return static_cast<T>(value / static_cast<uint64_t>(divisor));
  } else if constexpr (std::integral<T>) {
    return static_cast<T>(value / divisor);
  } else {
    return value / static_cast<T>(divisor);
  }
}

template <class T>
Complex<T> quotient(Complex<T> value, int64_t divisor) {
  return {quotient(value.re, divisor), quotient(value.im, divisor)};
}

/// The signed integer type with the size of a storage type.
template <class S>
using Ordered = std::conditional_t<
    sizeof(S) == 1, int8_t,
    std::conditional_t<sizeof(S) == 2, int16_t, std::conditional_t<sizeof(S) == 4, int32_t, int64_t>>>;

template <class S>
concept FloatingStorage = std::floating_point<decltype(load(S{}))>;

/// The bits of the type's largest number that is not a NaN.
template <FloatingStorage S>
constexpr Ordered<S> largest_number() {
  if constexpr (std::same_as<S, E4M3>) return 0x7E;
  if constexpr (std::same_as<S, E5M2>) return 0x7C;
  if constexpr (std::same_as<S, Half>) return 0x7C00;
  if constexpr (std::same_as<S, Brain>) return 0x7F80;
  if constexpr (std::same_as<S, float>) return 0x7F800000;
  if constexpr (std::same_as<S, double>) return 0x7FF0000000000000;
}

/// Calls `visitor` with a value of the storage type of a floating-point `dtype`; throws Error for others.
template <class Visitor>
void visit_floating(DType dtype, Visitor visitor) {
  visit(dtype, [&]<class S>(S value) {
    if constexpr (FloatingStorage<S>) return visitor(value);
    throw Error(ErrorCode::InvalidType, "reduce: expected a floating-point type, got " + std::string(row(dtype).name));
  });
}

template <class S>
void divide_values(S* values, int64_t count, int64_t divisor) {
  for (int64_t i = 0; i < count; ++i) values[i] = store<S>(quotient(load(values[i]), divisor));
}

template <FloatingStorage S, class T>
void multiply_values(S* values, int64_t count, T factor) {
  for (int64_t i = 0; i < count; ++i) values[i] = store<S>(load(values[i]) * factor);
}

// Floating-point numbers are sign and magnitude, integers two's complement: negative numbers get their magnitude's bits
// flipped.
template <FloatingStorage S>
void order_values(std::byte* values, int64_t count, Ordered<S> nan) {
  using I = Ordered<S>;
  constexpr I kMagnitude = std::numeric_limits<I>::max();
  for (int64_t i = 0; i < count; ++i) {
    I bits;
    std::memcpy(&bits, values + i * sizeof(I), sizeof(I));
    const I key = static_cast<I>(bits < 0 ? bits ^ kMagnitude : bits);
    bits = static_cast<I>(bits & kMagnitude) > largest_number<S>() ? nan : key;
    std::memcpy(values + i * sizeof(I), &bits, sizeof(I));
  }
}

template <std::signed_integral I>
void restore_values(std::byte* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    I key;
    std::memcpy(&key, values + i * sizeof(I), sizeof(I));
    key = static_cast<I>(key < 0 ? key ^ std::numeric_limits<I>::max() : key);
    std::memcpy(values + i * sizeof(I), &key, sizeof(I));
  }
}

}  // namespace

void undefined_reduction(RedOp red, DType dtype) {
  throw Error(ErrorCode::InvalidType,
              "reduce: " + std::string(name(red)) + " is not defined on " + std::string(row(dtype).name));
}

void divide(void* data, int64_t count, DType dtype, int64_t divisor) {
  if (dtype == DType::Bool) undefined_reduction(RedOp::AVG, dtype);
  if (divisor < 1)
    throw Error(ErrorCode::InvalidArgument, "reduce: divisor: expected 1 or more, got " + std::to_string(divisor));
  visit(dtype, [=]<class S>(S) {
    auto* values = static_cast<S*>(data);
    if constexpr (FloatingStorage<S>) {
      using T = decltype(load(S{}));
      // The reciprocal of a power of two is exact, so the product rounds the same number.
      if (std::has_single_bit(static_cast<uint64_t>(divisor))) {
        return vectorized<multiply_values<S, T>>(values, count, 1 / static_cast<T>(divisor));
      }
    }
    if constexpr (!std::same_as<S, Flag>) vectorized<divide_values<S>>(values, count, divisor);
  });
}

void multiply(void* data, int64_t count, DType dtype, double value, const void* element) {
  visit_floating(dtype, [=]<class S>(S) {
    using T = decltype(load(S{}));
    const T factor = element == nullptr ? static_cast<T>(value) : load(*static_cast<const S*>(element));
    vectorized<multiply_values<S, T>>(static_cast<S*>(data), count, factor);
  });
}

void to_ordered(void* data, int64_t count, DType dtype, bool nan_is_largest) {
  visit_floating(dtype, [=]<class S>(S) {
    using Limits = std::numeric_limits<Ordered<S>>;
    vectorized<order_values<S>>(static_cast<std::byte*>(data), count, nan_is_largest ? Limits::max() : Limits::min());
  });
}

void from_ordered(void* data, int64_t count, DType dtype) {
  visit_floating(dtype,
                 [=]<class S>(S) { vectorized<restore_values<Ordered<S>>>(static_cast<std::byte*>(data), count); });
}

}  // namespace mcr
