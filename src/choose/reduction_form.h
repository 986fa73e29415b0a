// SPDX-License-Identifier: Apache-2.0
// Reductions that a library of the host lacks, done with one that it has: AVG is SUM and a division, PREMUL_SUM is a
// multiplication and SUM, and MIN and MAX of floating-point numbers, where a NaN must win on every backend, are those
// of integers that order as the numbers do.
#pragma once

#include "base/call.h"
#include "plugin/backend.h"
#include "runtime/plan.h"

namespace mcr {

class ReductionForm {
 public:
  ReductionForm() = default;

  /// Finds how the communicator does the call, and changes the call's reduction and element type to those that it is
  /// asked for. A function of the call's operation, types and counts and of the communicator's tables: equal on all
  /// ranks. Other operations than reductions are left as they are.
  static ReductionForm of(const Communicator& communicator, Call& call);

  /// Whether the communicator supports the call as it is now.
  bool native() const { return native_; }

  /// Before the call is issued: changes its operands, or copies of those that belong to the caller.
  void prepare(Call& call, Plan& plan, int rank) const;
  /// After that, where the call's other last steps are in the plan: adds the step that makes the result of it.
  void finish(const Call& call, Plan& plan, int rank, int size) const;

 private:
  enum class Kind : uint8_t { Itself, Average, Premultiplied, Ordered };

  ReductionForm(Kind kind, bool native, DType dtype, RedOp red)
      : kind_(kind), native_(native), dtype_(dtype), red_(red) {}

  Kind kind_ = Kind::Itself;
  bool native_ = false;
  DType dtype_ = DType::Byte;  // as the caller gave them
  RedOp red_ = RedOp::SUM;
};

}  // namespace mcr
