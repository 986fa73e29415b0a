// SPDX-License-Identifier: Apache-2.0
// The plain values that cross every boundary of the core: element types, reductions, devices, and their names.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mcr {

enum class DTypeKind : uint8_t { Integer, Floating, Complex, Bool };

// torch's name, torch's ScalarType, bytes, kind
#define MCR_DTYPES(X)                          \
  X(uint8, Byte, 1, Integer)                   \
  X(int8, Char, 1, Integer)                    \
  X(uint16, UInt16, 2, Integer)                \
  X(int16, Short, 2, Integer)                  \
  X(uint32, UInt32, 4, Integer)                \
  X(int32, Int, 4, Integer)                    \
  X(uint64, UInt64, 8, Integer)                \
  X(int64, Long, 8, Integer)                   \
  X(float8_e4m3fn, Float8_e4m3fn, 1, Floating) \
  X(float8_e5m2, Float8_e5m2, 1, Floating)     \
  X(float16, Half, 2, Floating)                \
  X(bfloat16, BFloat16, 2, Floating)           \
  X(float32, Float, 4, Floating)               \
  X(float64, Double, 8, Floating)              \
  X(bool, Bool, 1, Bool)                       \
  X(complex64, ComplexFloat, 8, Complex)       \
  X(complex128, ComplexDouble, 16, Complex)

// The enumerators have ScalarType's names: `bool` cannot be one.
enum class DType : uint8_t {
#define X(name, scalar, bytes, kind) scalar,
  MCR_DTYPES(X)
#undef X
};

struct DTypeRow {
  std::string_view name;
  int bytes;
  DTypeKind kind;
};

inline constexpr std::array kDTypes = {
#define X(name, scalar, bytes, kind) DTypeRow{#name, bytes, DTypeKind::kind},
    MCR_DTYPES(X)
#undef X
};

constexpr const DTypeRow& row(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }
constexpr int64_t size_of(DType dtype) { return row(dtype).bytes; }

// In the order of torch's ReduceOp::RedOpType.
#define MCR_REDUCTIONS(X) X(SUM) X(AVG) X(PRODUCT) X(MIN) X(MAX) X(BAND) X(BOR) X(BXOR) X(PREMUL_SUM)

enum class RedOp : uint8_t {
#define X(name) name,
  MCR_REDUCTIONS(X)
#undef X
};

inline constexpr std::array kReductions = {
#define X(name) std::string_view(#name),
    MCR_REDUCTIONS(X)
#undef X
};

constexpr std::string_view name(RedOp red) { return kReductions[static_cast<std::size_t>(red)]; }

/// Whether the reduction is meaningful on the element type, for any backend.
constexpr bool defined(DType dtype, RedOp red) {
  switch (row(dtype).kind) {
    case DTypeKind::Integer:
      return red != RedOp::PREMUL_SUM;
    case DTypeKind::Floating:
      return red <= RedOp::MAX;
    case DTypeKind::Complex:
      return red <= RedOp::PRODUCT;
    case DTypeKind::Bool:
      return red != RedOp::AVG && red != RedOp::PREMUL_SUM;
  }
  return false;
}

/// Whether the reduction with a factor is meaningful on the element type.
constexpr bool takes_factor(DType dtype, RedOp red) {
  return red == RedOp::PREMUL_SUM && row(dtype).kind == DTypeKind::Floating;
}

/// Whether the reduction picks one of several floating-point numbers. Libraries disagree on the result if one is a NaN.
constexpr bool orders_numbers(DType dtype, RedOp red) {
  return (red == RedOp::MIN || red == RedOp::MAX) && row(dtype).kind == DTypeKind::Floating;
}

/// Classes of element types with similar costs, for the cost tables. `Any`: operations that only move data. `Half`: the
/// floating-point types of 16 and 8 bits, which are computed in a wider type.
enum class DTypeClass : uint8_t { Any, Half, Float, Integer, Complex };

inline constexpr std::array<std::string_view, 5> kDTypeClasses = {"any", "half", "float", "integer", "complex"};

constexpr DTypeClass class_of(DType dtype) {
  switch (row(dtype).kind) {
    case DTypeKind::Floating:
      return row(dtype).bytes <= 2 ? DTypeClass::Half : DTypeClass::Float;
    case DTypeKind::Complex:
      return DTypeClass::Complex;
    case DTypeKind::Integer:
    case DTypeKind::Bool:
      break;
  }
  return DTypeClass::Integer;
}

enum class DeviceType : uint8_t { CPU, CUDA };

struct Device {
  DeviceType type = DeviceType::CPU;
  int index = 0;
  auto operator<=>(const Device&) const = default;
};

constexpr std::string_view name(DeviceType type) { return type == DeviceType::CPU ? "cpu" : "cuda"; }

}  // namespace mcr
