// SPDX-License-Identifier: Apache-2.0
#include "choose/decision.h"

namespace mcr {

namespace {

Decision on_host(const Communicator& communicator, const Call& call) {
  Decision result;
  result.reduction = ReductionForm::of(communicator, call);
  if (result.reduction.native()) {
    result.form = Form::Native;
  } else if (row(call.op).fallback == Fallback::Exchange) {
    result.form = Form::Emulated;
  }
  return result;
}

// A host library may take device memory, once the device is idle; else it gets copies.
Decision staged(const Communicator& communicator, const Call& call) {
  Decision result;
  result.direct = ReductionForm::of(communicator, call).itself();
  if (!result.direct) {
    Call copies = call;
    copies.device = {};
    const auto form = on_host(communicator, copies).form;
    if (form == Form::Unsupported) return result;
    result.emulated = form == Form::Emulated;
  }
  result.form = Form::Staged;
  return result;
}

}  // namespace

Decision Decision::worked_out(const Communicator& communicator, const Call& call) {
  const OpRow& op = row(call.op);
  if (call.vectored && !op.is(kVectored)) return {};
  if (op.is(kReduces) && !defined(call.dtype, call.red) && !takes_factor(call.dtype, call.red)) return {};
  if (const auto streams = communicator.streams()) {
    Decision result;
    result.reduction = ReductionForm::of(communicator, call);
    if (call.device.type == *streams && result.reduction.itself()) result.form = Form::Stream;
    return result;
  }
  if (call.device.type == DeviceType::CPU) return on_host(communicator, call);
  // The staging of an earlier part has already waited for the device.
  auto result = staged(communicator, call);
  if (result.direct && call.device_idle) {
    result.form = Form::Native;
    result.reduction = ReductionForm::of(communicator, call);
  }
  return result;
}

std::string_view Decision::text() const {
  switch (form) {
    case Form::Native:
    case Form::Stream:
      return "native";
    case Form::Staged:
      return direct ? "native" : "staged";
    case Form::Emulated:
      return "emulated";
    case Form::Unsupported:
      break;
  }
  return "-";
}

}  // namespace mcr
