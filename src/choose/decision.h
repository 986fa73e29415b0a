// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/call.h"
#include "choose/reduction_form.h"
#include "plugin/backend.h"

namespace mcr {

/// How a communicator does a call.
enum class Form : uint8_t {
  Native,       // as one call of the library, if necessary with another reduction
  Stream,       // like Native, enqueued on a stream of the tensors' device
  Staged,       // by a host library, once the device has reached the call: on copies, or on device memory
  Emulated,     // by sends and receives (algorithms/emulate.h)
  Unsupported,  // not at all
};

/// The one place that decides how a communicator does a call: dispatch, the choice of a candidate, mcr_dl.support() and
/// the passes use it. A function of the communicator's tables and of the call's operation, types, reduction, device and
/// counts that all ranks know, so that the decision is equal on all ranks.
struct Decision {
  /// The communicator caches decisions on small calls, which are the most frequent: one load then answers.
  [[gnu::always_inline]] static Decision of(const Communicator& communicator, const Call& call) {
    if (!memorable(call)) [[unlikely]]
      return worked_out(communicator, call);
    const auto key = key_of(call);
    auto& word = communicator.remembered(static_cast<std::size_t>(call.op) + static_cast<std::size_t>(call.dtype));
    const auto known = word.load(std::memory_order_relaxed);
    if (known >> kBits == key) [[likely]]
      return unpacked(known, call);
    const auto decision = worked_out(communicator, call);
    word.store(key << kBits | decision.packed(), std::memory_order_relaxed);
    return decision;
  }

  /// Whether the library does the call on the tensors' own memory.
  bool native() const { return form == Form::Native || form == Form::Stream || (form == Form::Staged && direct); }
  /// Whether the library does the call on copies in host memory.
  bool native_on_copies() const { return form == Form::Staged && !direct && !emulated; }
  /// "native", "staged", "emulated", or "-" for Unsupported.
  std::string_view text() const;

  Form form = Form::Unsupported;
  bool direct = false;      // for Staged: the library takes device memory
  bool emulated = false;    // for Staged: the call on the copies is emulated
  ReductionForm reduction;  // for Native and Emulated

 private:
  // Below this many elements per rank, the counts of no rank are too large for a library, unless the caller's hint is.
  static constexpr int64_t kSmall = 1 << 15;
  static constexpr int64_t kLargestHint = int64_t{1} << 31;  // bytes
  static constexpr int kBits = 32;                           // of a word; the key has the other bits

  static Decision worked_out(const Communicator& communicator, const Call& call);

  static bool memorable(const Call& call) {
    return call.in.count < kSmall && call.out.count < kSmall && call.root != kAnyRank &&
           call.red != RedOp::PREMUL_SUM && call.size_hint < kLargestHint;
  }
  // Never 0.
  static uint64_t key_of(const Call& call) {
    const auto flags =
        1u | (call.vectored ? 2u : 0u) | (call.device_idle ? 4u : 0u) | static_cast<unsigned>(call.device.type) << 3;
    return static_cast<uint64_t>(call.op) | static_cast<uint64_t>(call.dtype) << 8 |
           static_cast<uint64_t>(call.red) << 16 | static_cast<uint64_t>(flags) << 24;
  }
  uint64_t packed() const {
    return static_cast<uint64_t>(reduction.packed()) << 8 | static_cast<uint64_t>(form) | (direct ? 16u : 0u) |
           (emulated ? 32u : 0u);
  }
  static Decision unpacked(uint64_t word, const Call& call) {
    return {static_cast<Form>(word & 15), (word & 16) != 0, (word & 32) != 0,
            ReductionForm::unpacked(static_cast<uint32_t>(word) >> 8, call)};
  }
};

}  // namespace mcr
