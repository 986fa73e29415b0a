// SPDX-License-Identifier: Apache-2.0
#include "base/reduce.h"

#include <concepts>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "base/elements.h"
#include "base/error.h"

namespace mcr {
namespace {

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

template <class S, class Reduction>
void loop(void* into, const void* from, int64_t count) {
  S* __restrict a = static_cast<S*>(into);
  const S* __restrict b = static_cast<const S*>(from);
  for (int64_t i = 0; i < count; ++i) {
    a[i] = store<S>(Reduction::of(load(a[i]), load(b[i])));
  }
}

using Loop = void (*)(void*, const void*, int64_t);

template <class S>
Loop loop_of(RedOp red) {
  using T = decltype(load(S{}));
  if constexpr (std::is_arithmetic_v<T>) {
    if (red == RedOp::MIN) return loop<S, Min>;
    if (red == RedOp::MAX) return loop<S, Max>;
  }
  if constexpr (std::integral<T>) {
    if (red == RedOp::BAND) return loop<S, BitAnd>;
    if (red == RedOp::BOR) return loop<S, BitOr>;
    if (red == RedOp::BXOR) return loop<S, BitXor>;
  }
  if (red == RedOp::SUM) return loop<S, Sum>;
  if (red == RedOp::PRODUCT) return loop<S, Product>;
  return nullptr;
}

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

}  // namespace

void combine(void* into, const void* from, int64_t count, DType dtype, RedOp red) {
  const Loop run = visit(dtype, [red]<class S>(S) { return loop_of<S>(red); });
  if (run == nullptr) {
    throw Error(ErrorCode::InvalidType,
                "reduce: " + std::string(name(red)) + " is not defined on " + std::string(row(dtype).name));
  }
  run(into, from, count);
}

void divide(void* data, int64_t count, DType dtype, int64_t divisor) {
  if (dtype == DType::Bool) throw Error(ErrorCode::InvalidType, "reduce: AVG is not defined on bool");
  if (divisor < 1) throw Error(ErrorCode::InvalidArgument, "reduce: cannot divide by " + std::to_string(divisor));
  visit(dtype, [=]<class S>(S) {
    S* values = static_cast<S*>(data);
    if constexpr (!std::same_as<S, Flag>) {
      for (int64_t i = 0; i < count; ++i) values[i] = store<S>(quotient(load(values[i]), divisor));
    }
  });
}

void multiply(void* data, int64_t count, DType dtype, double value, const void* element) {
  visit_floating(dtype, [=]<class S>(S) {
    using T = decltype(load(S{}));
    const T factor = element == nullptr ? static_cast<T>(value) : load(*static_cast<const S*>(element));
    S* values = static_cast<S*>(data);
    for (int64_t i = 0; i < count; ++i) values[i] = store<S>(load(values[i]) * factor);
  });
}

// Floating-point numbers are sign and magnitude, integers two's complement: negative numbers get their magnitude's bits
// flipped.
void to_ordered(void* data, int64_t count, DType dtype, bool nan_is_largest) {
  visit_floating(dtype, [=]<class S>(S) {
    using I = Ordered<S>;
    constexpr I kMagnitude = std::numeric_limits<I>::max();
    const I nan = nan_is_largest ? kMagnitude : std::numeric_limits<I>::min();
    auto* values = static_cast<std::byte*>(data);
    for (int64_t i = 0; i < count; ++i) {
      I bits;
      std::memcpy(&bits, values + i * sizeof(I), sizeof(I));
      const I key = static_cast<I>(bits < 0 ? bits ^ kMagnitude : bits);
      bits = static_cast<I>(bits & kMagnitude) > largest_number<S>() ? nan : key;
      std::memcpy(values + i * sizeof(I), &bits, sizeof(I));
    }
  });
}

void from_ordered(void* data, int64_t count, DType dtype) {
  visit_floating(dtype, [=]<class S>(S) {
    using I = Ordered<S>;
    auto* values = static_cast<std::byte*>(data);
    for (int64_t i = 0; i < count; ++i) {
      I key;
      std::memcpy(&key, values + i * sizeof(I), sizeof(I));
      key = static_cast<I>(key < 0 ? key ^ std::numeric_limits<I>::max() : key);
      std::memcpy(values + i * sizeof(I), &key, sizeof(I));
    }
  });
}

}  // namespace mcr
