// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/types.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/elements.h"

namespace mcr::nccl {

namespace {

struct Known {
  DType dtype;
  Type type;
  int64_t factor = 1;
  int since = 0;
};

constexpr std::array kKnown = {
    Known{DType::Byte, Type::Uint8},
    Known{DType::Char, Type::Int8},
    Known{DType::UInt32, Type::Uint32},
    Known{DType::Int, Type::Int32},
    Known{DType::UInt64, Type::Uint64},
    Known{DType::Long, Type::Int64},
    Known{DType::Half, Type::Float16},
    Known{DType::BFloat16, Type::Bfloat16},
    Known{DType::Float, Type::Float32},
    Known{DType::Double, Type::Float64},
    Known{DType::Bool, Type::Uint8},
    Known{DType::ComplexFloat, Type::Float32, 2},
    Known{DType::ComplexDouble, Type::Float64, 2},
    Known{DType::Float8_e4m3fn, Type::Float8e4m3, 1, kFloat8Version},
    Known{DType::Float8_e5m2, Type::Float8e5m2, 1, kFloat8Version},
};

bool has(const Known& known, DTypeKind kind, RedOp red) {
  switch (red) {
    case RedOp::SUM:
    case RedOp::AVG:
      return kind != DTypeKind::Bool;
    case RedOp::PRODUCT:
      return kind == DTypeKind::Integer || kind == DTypeKind::Floating;
    case RedOp::MIN:
    case RedOp::MAX:
      return kind != DTypeKind::Complex;
    case RedOp::PREMUL_SUM:
      return kind == DTypeKind::Floating && known.since == 0;
    case RedOp::BAND:
    case RedOp::BOR:
    case RedOp::BXOR:
      break;
  }
  return false;
}

// The average of one rank is its sum: NCCL (2.24 to 2.28 at least) cannot average float8 on a single rank.
Operator native_operator(RedOp red, int ranks) {
  switch (red) {
    case RedOp::AVG:
      return ranks == 1 ? Operator::Sum : Operator::Avg;
    case RedOp::PRODUCT:
      return Operator::Prod;
    case RedOp::MIN:
      return Operator::Min;
    case RedOp::MAX:
      return Operator::Max;
    default:
      return Operator::Sum;
  }
}

// A factor as the bits of an NCCL type.
using Scalar = std::array<std::byte, sizeof(double)>;

template <class T>
Scalar bits_of(T value) {
  Scalar scalar{};
  std::memcpy(scalar.data(), &value, sizeof(value));
  return scalar;
}

Scalar scalar_of(Type type, double factor) {
  switch (type) {
    case Type::Float16:
      return bits_of(store<Half>(static_cast<float>(factor)));
    case Type::Bfloat16:
      return bits_of(store<Brain>(static_cast<float>(factor)));
    case Type::Float32:
      return bits_of(static_cast<float>(factor));
    default:
      return bits_of(factor);
  }
}

}  // namespace

std::optional<View> reduction_view(DType dtype, RedOp red, int version) {
  const auto known = std::ranges::find(kKnown, dtype, &Known::dtype);
  if (known == kKnown.end() || version < known->since || !has(*known, row(dtype).kind, red)) return std::nullopt;
  return View{known->type, known->factor};
}

Reduction::Reduction(const Library& library, const Call& call, Type type, Comm comm, int ranks)
    : library_(library), comm_(comm), operator_(native_operator(call.red, ranks)) {
  if (call.red != RedOp::PREMUL_SUM) return;
  if (call.factor_data != nullptr) {
    // NCCL reads it when the operation runs; the parameter is not const, but NCCL does not write to it.
    library_.create_premul(&operator_, const_cast<void*>(call.factor_data), type, Residence::Device, comm);
  } else {
    Scalar scalar = scalar_of(type, call.factor);
    library_.create_premul(&operator_, scalar.data(), type, Residence::HostImmediate, comm);
  }
  made_ = true;
}

// NCCL keeps what calls that were made with the operator need.
Reduction::~Reduction() {
  if (made_) library_.destroy_operator.quietly(operator_, comm_);
}

}  // namespace mcr::nccl
