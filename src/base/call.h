// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "base/ops.h"
#include "base/types.h"

namespace mcr {

struct Coding;

inline constexpr int kAnyRank = -1;

struct Buffer {
  void* data = nullptr;
  int64_t count = 0;  // elements
};

/// All that a backend sees of an operation: no tensor, no Python. Counts and displacements are in elements.
///
/// Extent::Same uses `out` alone. `in` and `out` never overlap otherwise. In a vectored call the spans have one entry
/// per rank (empty where the rank does not need them) and outlive the operation. Displacements are always filled in.
struct Call {
  Op op = Op::barrier;
  DType dtype = DType::Byte;
  RedOp red = RedOp::SUM;
  bool vectored = false;
  bool device_idle = false;  // nothing that was enqueued still changes the device memory of the buffers
  bool internal = false;     // part of an emulation: its messages must not match a user's
  bool any_form = false;     // elsewhere the same call may be asynchronous, or be made by another thread
  uint8_t variant = 0;       // which of the communicator's ways to do it: 0 for the library's own choice
  Device device;
  Buffer in, out;
  std::span<const int64_t> in_counts, in_displs, out_counts, out_displs;
  int root = 0;  // root, or peer of a send or receive, as a rank of the group; kAnyRank to receive from any
  int tag = 0;
  double factor = std::numeric_limits<double>::quiet_NaN();  // of PREMUL_SUM; NaN: not given
  const void* factor_data = nullptr;  // the same in device memory, one element of `dtype`; null: `factor` counts
  int64_t size_hint = -1;  // bytes that the caller says to choose by, equal on all ranks; -1 if it says nothing
  const std::string* layout = nullptr;  // in detail mode: how `out` lies in memory, if not row by row
  const Coding* coding = nullptr;       // how the caller wants it compressed; null: as the group does
  std::chrono::milliseconds timeout{0};
};

/// The size that tables go by, in bytes: that of the tensor; of all ranks' data for gathers, scatters and what combines
/// them; of one rank's for exchanges. -1 where ranks may see different counts: vectored calls other than all_gather and
/// reduce_scatter, unless the caller gives a hint.
int64_t message_bytes(const Call& call, int ranks);

}  // namespace mcr
