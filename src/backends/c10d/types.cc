// SPDX-License-Identifier: Apache-2.0
#include "backends/c10d/types.h"

#include <array>

namespace mcr::c10d_types {

namespace {

constexpr std::array kScalarTypes = {
#define X(name, scalar, ...) at::ScalarType::scalar,
    MCR_DTYPES(X)
#undef X
};

bool bitwise(RedOp red) { return red == RedOp::BAND || red == RedOp::BOR || red == RedOp::BXOR; }

}  // namespace

std::optional<View> reduction_view(bool gloo, DType dtype, RedOp red) {
  const View native{kScalarTypes[static_cast<std::size_t>(dtype)]};
  const auto otherwise = gloo ? std::nullopt : std::optional<View>(native);
  if (orders_numbers(dtype, red) || red == RedOp::AVG || red == RedOp::PREMUL_SUM) return std::nullopt;
  switch (dtype) {
    case DType::Bool:
      return View{at::kByte};
    case DType::ComplexFloat:
    case DType::ComplexDouble:
      if (red != RedOp::SUM) return std::nullopt;
      return View{dtype == DType::ComplexFloat ? at::kFloat : at::kDouble, 2};
    case DType::Float8_e4m3fn:
    case DType::Float8_e5m2:
      return otherwise;
    case DType::Short:
    case DType::UInt16:
      return bitwise(red) ? View{at::kByte, 2} : otherwise;
    case DType::UInt32:
    case DType::UInt64:
      if (red == RedOp::MIN || red == RedOp::MAX) return otherwise;
      return View{dtype == DType::UInt32 ? at::kInt : at::kLong};
    default:
      return native;
  }
}

}  // namespace mcr::c10d_types
