// SPDX-License-Identifier: Apache-2.0
#include "choose/reduction_form.h"

#include <cstring>

#include "base/reduce.h"

namespace mcr {

namespace {

// The integer type that holds the bits of a floating-point type.
DType integer_of(DType dtype) {
  switch (size_of(dtype)) {
    case 1:
      return DType::Char;
    case 2:
      return DType::Short;
    case 4:
      return DType::Int;
    default:
      return DType::Long;
  }
}

// On bool, SUM is a logical or and PRODUCT a logical and.
RedOp on_bool(RedOp red) {
  if (red == RedOp::SUM) return RedOp::MAX;
  return red == RedOp::PRODUCT ? RedOp::MIN : red;
}

// Whether the reduction's operands are the memory of its result.
bool in_place(const Call& call, int rank) {
  return row(call.op).extent == Extent::Same && (!row(call.op).is(kRooted) || call.root == rank);
}

// The memory that the reduction may change: the result's own on ranks that get one, else a copy of the rank's input.
Buffer operands(Call& call, Extras& extras, int rank) {
  if (in_place(call, rank)) return call.out;
  Buffer& given = row(call.op).extent == Extent::Same ? call.out : call.in;
  const auto bytes = given.count * size_of(call.dtype);
  void* copy = extras.allocate({}, bytes);
  if (bytes != 0) std::memcpy(copy, given.data, static_cast<std::size_t>(bytes));
  given.data = copy;
  return given;
}

}  // namespace

ReductionForm ReductionForm::of(const Communicator& communicator, const Call& call) {
  const bool reduces = row(call.op).is(kReduces);
  const bool logical = reduces && call.dtype == DType::Bool;
  if (!logical) {
    const bool native = communicator.supports(call);
    if (native || !reduces) return {Kind::Itself, call, call, native};
  }
  return other_form(communicator, call);
}

ReductionForm ReductionForm::other_form(const Communicator& communicator, const Call& call) {
  Call asked = call;
  const auto form = [&](Kind kind) { return ReductionForm(kind, call, asked, communicator.supports(asked)); };
  if (call.dtype == DType::Bool) asked.red = on_bool(call.red);
  const auto itself = form(Kind::Itself);
  if (itself.native()) return itself;
  if (call.red == RedOp::AVG || call.red == RedOp::PREMUL_SUM) {
    asked.red = RedOp::SUM;
    return form(call.red == RedOp::AVG ? Kind::Average : Kind::Premultiplied);
  }
  if (orders_numbers(call.dtype, call.red)) {
    asked.dtype = integer_of(call.dtype);
    const auto ordered = form(Kind::Ordered);
    if (ordered.native()) return ordered;
  }
  return itself;
}

void ReductionForm::change_operands(Call& call, Extras& extras, int rank) const {
  if (kind_ == Kind::Premultiplied) {
    const auto values = operands(call, extras, rank);
    multiply(values.data, values.count, dtype_, call.factor, call.factor_data);
  } else if (kind_ == Kind::Ordered) {
    const auto values = operands(call, extras, rank);
    to_ordered(values.data, values.count, dtype_, red_ == RedOp::MAX);
  }
}

void ReductionForm::undo(const Call& call, int rank) const {
  if (kind_ == Kind::Ordered && in_place(call, rank)) from_ordered(call.out.data, call.out.count, dtype_);
}

void ReductionForm::change_result(const Call& call, Extras& extras, int rank, int size) const {
  if (row(call.op).is(kRooted) && call.root != rank) return;
  if (kind_ == Kind::Average) {
    extras.finish.emplace_back([out = call.out, dtype = dtype_, size] { divide(out.data, out.count, dtype, size); });
  } else if (kind_ == Kind::Ordered) {
    extras.finish.emplace_back([out = call.out, dtype = dtype_] { from_ordered(out.data, out.count, dtype); });
  }
}

}  // namespace mcr
