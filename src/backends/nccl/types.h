// SPDX-License-Identifier: Apache-2.0
// Which reductions NCCL has, and on which of its types each of ours is done.
#pragma once

#include <optional>

#include "backends/nccl/library.h"
#include "base/call.h"

namespace mcr::nccl {

/// The elements that NCCL is given: each of ours is `factor` of them.
struct View {
  Type type;
  int64_t factor = 1;
};

/// How NCCL of that version reduces elements of a type, if it does. A function of its arguments alone.
std::optional<View> reduction_view(DType dtype, RedOp red, int version);

/// NCCL's operator for a call, and where it has to be made for it, as long as this lives. Calls that are collected in a
/// group may be started after it.
class Reduction {
 public:
  Reduction(const Library& library, const Call& call, Type type, Comm comm);
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;
  ~Reduction();
  Operator get() const { return operator_; }

 private:
  const Library& library_;
  Comm comm_;
  Operator operator_ = Operator::Sum;
  bool made_ = false;
};

}  // namespace mcr::nccl
