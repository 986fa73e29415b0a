// SPDX-License-Identifier: Apache-2.0
// The reductions on values, for the loops of reduce.cc and combine_all.cc.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "base/elements.h"
#include "base/error.h"
#include "base/types.h"

namespace mcr::reductions {

/// An unsigned type of at least 32 bits, so that integers wrap around instead of overflowing.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) < sizeof(uint32_t), uint32_t, std::make_unsigned_t<T>>;

template <class T>
concept Integer = std::integral<T> && !std::same_as<T, bool>;

struct Sum {
  static bool of(bool a, bool b) { return a | b; }
  static auto of(std::floating_point auto a, decltype(a) b) { return a + b; }
  template <Integer T>
  static T of(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
  template <class T>
  static Complex<T> of(Complex<T> a, Complex<T> b) {
    return {a.re + b.re, a.im + b.im};
  }
};

struct Product {
  static bool of(bool a, bool b) { return a & b; }
  static auto of(std::floating_point auto a, decltype(a) b) { return a * b; }
  template <Integer T>
  static T of(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  }
  template <class T>
  static Complex<T> of(Complex<T> a, Complex<T> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  }
};

struct Min {
  template <class T>
  static T of(T a, T b) {
    return ((a < b) | (a != a)) ? a : b;  // a NaN in b fails the comparison and is taken
  }
};

struct Max {
  template <class T>
  static T of(T a, T b) {
    return ((a > b) | (a != a)) ? a : b;
  }
};

struct BitAnd {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a & b);
  }
};

struct BitOr {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a | b);
  }
};

struct BitXor {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

/// Calls `visitor` with a value of the storage type of `dtype`.
template <class Visitor>
auto visit(DType dtype, Visitor visitor) {
  switch (dtype) {
    case DType::Byte:
      return visitor(uint8_t{});
    case DType::Char:
      return visitor(int8_t{});
    case DType::UInt16:
      return visitor(uint16_t{});
    case DType::Short:
      return visitor(int16_t{});
    case DType::UInt32:
      return visitor(uint32_t{});
    case DType::Int:
      return visitor(int32_t{});
    case DType::UInt64:
      return visitor(uint64_t{});
    case DType::Long:
      return visitor(int64_t{});
    case DType::Float8_e4m3fn:
      return visitor(E4M3{});
    case DType::Float8_e5m2:
      return visitor(E5M2{});
    case DType::Half:
      return visitor(Half{});
    case DType::BFloat16:
      return visitor(Brain{});
    case DType::Float:
      return visitor(float{});
    case DType::Double:
      return visitor(double{});
    case DType::Bool:
      return visitor(Flag{});
    case DType::ComplexFloat:
      return visitor(Complex<float>{});
    case DType::ComplexDouble:
      return visitor(Complex<double>{});
  }
  throw Error(ErrorCode::InvalidType, "reduce: unknown element type");
}

/// Calls `visitor` with the reduction, if it is defined on the storage type S; returns a null result otherwise.
template <class S, class Visitor>
auto visit_reduction(RedOp red, Visitor visitor) -> decltype(visitor(Sum{})) {
  using T = decltype(load(S{}));
  if constexpr (std::is_arithmetic_v<T>) {
    if (red == RedOp::MIN) return visitor(Min{});
    if (red == RedOp::MAX) return visitor(Max{});
  }
  if constexpr (std::integral<T>) {
    if (red == RedOp::BAND) return visitor(BitAnd{});
    if (red == RedOp::BOR) return visitor(BitOr{});
    if (red == RedOp::BXOR) return visitor(BitXor{});
  }
  if (red == RedOp::SUM) return visitor(Sum{});
  if (red == RedOp::PRODUCT) return visitor(Product{});
  return {};
}

}  // namespace mcr::reductions
