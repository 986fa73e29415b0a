// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "base/call.h"
#include "choose/reduction_form.h"
#include "plugin/backend.h"

namespace mcr {

/// How a communicator does a call.
enum class Form : uint8_t {
  Native,       // as one call of the library, if need be with another reduction
  Stream,       // as Native, enqueued on a stream of the tensors' device
  Staged,       // a library of the host, once the device has reached the call: on copies, or on the device's memory
  Emulated,     // by sends and receives (algorithms/emulate.h)
  Unsupported,  // not at all
};

/// The one place that decides how a communicator does a call: dispatch, the choice of a candidate, mcr_dl.support() and
/// the passes ask it. A function of the communicator's tables and of the call's operation, types, reduction, device and
/// counts that all ranks know, so all ranks decide alike.
struct Decision {
  static Decision of(const Communicator& communicator, const Call& call);

  /// Whether the library does the call on the tensors' own memory.
  bool native() const { return form == Form::Native || form == Form::Stream || (form == Form::Staged && direct); }
  /// Whether the library does the call on copies in host memory.
  bool native_on_copies() const { return form == Form::Staged && !direct && !emulated; }
  /// "native", "staged", "emulated", or "-" for Unsupported.
  std::string_view text() const;

  Form form = Form::Unsupported;
  bool direct = false;      // of Staged: the library takes the device's memory
  bool emulated = false;    // of Staged: the call on the copies is emulated
  ReductionForm reduction;  // of Native and Emulated
};

}  // namespace mcr
