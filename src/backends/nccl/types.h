// SPDX-License-Identifier: Apache-2.0
// The reductions that NCCL supports, and the NCCL type used for each element type of the core.
#pragma once

#include <optional>

#include "backends/nccl/library.h"
#include "base/call.h"

namespace mcr::nccl {

/// The elements that NCCL gets: each element of the core is `factor` of them.
struct View {
  Type type;
  int64_t factor = 1;
};

/// How that version of NCCL reduces elements of a type, if it can. A function of its arguments alone.
std::optional<View> reduction_view(DType dtype, RedOp red, int version);

/// NCCL's operator for a call; if it has to be created, it exists as long as this object. Calls collected in a group
/// may start after this object is gone.
class Reduction {
 public:
  Reduction(const Library& library, const Call& call, Type type, Comm comm, int ranks);
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
