// SPDX-License-Identifier: Apache-2.0
#include "reduce.h"

#include <bit>
#include <concepts>
#include <string>
#include <type_traits>

#include "error.h"

namespace mcr {
namespace {

// Every element type is a storage type S with a type that it is computed in: load(S) -> T, store<S>(T) -> S. All
// conversions are free of branches, so that the loops below become vector code.

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

/// `condition ? yes : no` that stays arithmetic: a branch would keep the loop from becoming vector code.
constexpr uint32_t choose(bool condition, uint32_t yes, uint32_t no) {
  return no ^ ((yes ^ no) & -static_cast<uint32_t>(condition));
}

inline float load(Half half) {
  const uint32_t exponent = half.bits & 0x7C00u;
  const uint32_t mantissa = half.bits & 0x03FFu;
  const uint32_t rebias = choose(exponent == 0x7C00u, 0x70000000u, 0x38000000u);  // infinities, NaNs: all bits set
  const uint32_t normal = ((exponent | mantissa) << 13) + rebias;
  // Made from an integer, because a thread may flush subnormal floats to zero.
  const float small = static_cast<float>(static_cast<int32_t>(mantissa)) * 0x1p-24f;
  const uint32_t magnitude = choose(exponent == 0, std::bit_cast<uint32_t>(small), normal);
  return std::bit_cast<float>(magnitude | (static_cast<uint32_t>(half.bits & 0x8000u) << 16));
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

/// Round to nearest, ties to even, at bit `drop` of a float's magnitude.
constexpr uint32_t round_off(uint32_t magnitude, int drop) {
  return (magnitude + (1u << (drop - 1)) - 1 + ((magnitude >> drop) & 1u)) >> drop;
}

template <std::same_as<Half> S>
S store(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  // Overflow in rounding carries into the exponent and yields infinity, as it should.
  const uint32_t normal = round_off(magnitude - 0x38000000u, 13);
  // At 0.5 the unit in the last place is half's smallest subnormal: the addition rounds.
  const uint32_t small =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  const uint32_t special = choose(magnitude > 0x7F800000u, 0x7E00u, 0x7C00u);
  const uint32_t finite = choose(magnitude < 0x38800000u, small, normal);
  const uint32_t result = choose(magnitude >= 0x47800000u, special, finite);
  return {static_cast<uint16_t>(result | ((bits >> 16) & 0x8000u))};
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

/// Unsigned and at least 32 bits wide, so that integers wrap around instead of overflowing.
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
    return (a < b) | (a != a) ? a : b;  // a NaN in b fails the comparison and is taken
  }
};

struct Max {
  template <class T>
  static T of(T a, T b) {
    return (a > b) | (a != a) ? a : b;
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

}  // namespace mcr
