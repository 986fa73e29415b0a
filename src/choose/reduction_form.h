// SPDX-License-Identifier: Apache-2.0
// Reductions that a host library lacks, done with one that it has: AVG is SUM and a division; PREMUL_SUM is a
// multiplication and SUM; MIN and MAX of floating-point numbers, where a NaN must win on every backend, become MIN and
// MAX of integers in the order of the numbers.
#pragma once

#include <cstdint>

#include "base/call.h"
#include "plugin/backend.h"
#include "runtime/extras.h"

namespace mcr {

class ReductionForm {
 public:
  ReductionForm() = default;

  /// Finds the reduction and element type with which the communicator can do the call. A function of the call's
  /// operation, types and counts and of the communicator's tables: equal on all ranks. On bool, SUM is a logical or and
  /// PRODUCT a logical and, on every backend. Operations that reduce nothing stay unchanged.
  static ReductionForm of(const Communicator& communicator, const Call& call);

  /// Packed into 24 bits, without the caller's own element type and reduction.
  uint32_t packed() const {
    return static_cast<uint32_t>(kind_) | (native_ ? kNativeBit : 0) | static_cast<uint32_t>(asked_dtype_) << 8 |
           static_cast<uint32_t>(asked_red_) << 16;
  }
  static ReductionForm unpacked(uint32_t bits, const Call& given) {
    ReductionForm form;
    form.kind_ = static_cast<Kind>(bits & (kNativeBit - 1));
    form.native_ = (bits & kNativeBit) != 0;
    form.dtype_ = given.dtype;
    form.red_ = given.red;
    form.asked_dtype_ = static_cast<DType>(bits >> 8 & 0xff);
    form.asked_red_ = static_cast<RedOp>(bits >> 16 & 0xff);
    return form;
  }

  /// Whether the communicator supports the replacement reduction.
  bool native() const { return native_; }
  /// Whether it supports the call itself, without an extra step before or after.
  bool itself() const { return native_ && kind_ == Kind::Itself; }

  /// Call before the call is issued or emulated: sets the replacement reduction and element type, and changes the
  /// operands, or copies of those that belong to the caller.
  void prepare(Call& call, Extras& extras, int rank) const {
    if (kind_ != Kind::Itself) change_operands(call, extras, rank);
    if (!row(call.op).is(kReduces)) return;
    call.dtype = asked_dtype_;
    call.red = asked_red_;
  }
  /// Call if the prepared call was refused: MIN's and MAX's operands become the caller's numbers again. PREMUL_SUM's
  /// stay multiplied, as a division would round them.
  void undo(const Call& call, int rank) const;
  /// Call afterwards, when the call's other last steps are in the extras: adds the step that converts the result.
  void finish(const Call& call, Extras& extras, int rank, int size) const {
    if (kind_ != Kind::Itself) change_result(call, extras, rank, size);
  }

 private:
  static constexpr uint32_t kNativeBit = 4;
  enum class Kind : uint8_t { Itself, Average, Premultiplied, Ordered };

  ReductionForm(Kind kind, const Call& given, const Call& asked, bool native)
      : kind_(kind),
        native_(native),
        dtype_(given.dtype),
        red_(given.red),
        asked_dtype_(asked.dtype),
        asked_red_(asked.red) {}

  static ReductionForm other_form(const Communicator& communicator, const Call& call);
  void change_operands(Call& call, Extras& extras, int rank) const;
  void change_result(const Call& call, Extras& extras, int rank, int size) const;

  Kind kind_ = Kind::Itself;
  bool native_ = false;
  DType dtype_ = DType::Byte;  // the caller's
  RedOp red_ = RedOp::SUM;
  DType asked_dtype_ = DType::Byte;  // the communicator's
  RedOp asked_red_ = RedOp::SUM;
};

}  // namespace mcr
