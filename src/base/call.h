// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/ops.h"
#include "base/types.h"

namespace mcr {

struct Coding;

inline constexpr int kAnyRank = -1;

/// Points in time are 64 bits of nanoseconds: a longer timeout would wrap.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(100 * 365 * 24);

inline std::chrono::milliseconds bounded(std::chrono::milliseconds timeout) {
  return std::min(timeout, kLongestTimeout);
}

struct Buffer {
  void* data = nullptr;
  int64_t count = 0;  // elements
};

inline std::byte* at(void* data, int64_t bytes) { return static_cast<std::byte*>(data) + bytes; }
inline std::byte* at(void* data, int64_t elements, DType dtype) { return at(data, elements * size_of(dtype)); }

/// `count` elements of a buffer, from element `offset` on.
inline Buffer slice(const Buffer& whole, DType dtype, int64_t offset, int64_t count) {
  return {at(whole.data, offset, dtype), count};
}

/// An operation on raw buffers: no tensor, no Python. Counts and displacements are in elements. Backends do not need
/// `device_idle`, `any_form`, `asynchronous`, `priority`, `key`, `layout` and `coding`, which serve the core.
///
/// Extent::Same uses only `out`. In all other calls `in` and `out` never overlap. In a vectored call the spans have one
/// entry per rank (empty where the rank does not need them) and outlive the operation. Displacements are always filled
/// in.
struct Call {
  Op op = Op::barrier;
  DType dtype = DType::Byte;
  RedOp red = RedOp::SUM;
  bool vectored = false;
  bool device_idle = false;   // no enqueued work still changes the buffers' device memory
  bool internal = false;      // part of an emulation: its messages must not match a user's
  bool any_form = false;      // on other ranks the call may be asynchronous, or another thread may make it
  bool asynchronous = false;  // returns before it is complete, on all ranks: asynchronous and not of any form
  uint8_t variant = 0;        // which of the communicator's variants does it; 0: the library's own choice
  Device device;
  Buffer in, out;
  std::span<const int64_t> in_counts, in_displs, out_counts, out_displs;
  int root = 0;  // root, or peer of a send or receive, as a group rank; kAnyRank to receive from any rank
  int tag = 0;
  double factor = std::numeric_limits<double>::quiet_NaN();  // for PREMUL_SUM; NaN: not given
  const void* factor_data = nullptr;  // the factor in device memory, one element of `dtype`; null: `factor` is used
  int32_t priority = 0;  // of the calls that wait to be issued, the lowest number goes first; equal on all ranks
  const std::string* key = nullptr;  // the caller's name for the data; lives until the process ends
  int64_t size_hint = -1;            // bytes that the caller gives for the choice, equal on all ranks; -1 if not given
  const std::string* layout = nullptr;  // in detail mode: the memory layout of `out`, if not row by row
  const Coding* coding = nullptr;       // how the caller wants it compressed; null: the group's default
  std::chrono::milliseconds timeout{0};
};

/// A step of a collective on other buffers: with its type, reduction, priority and timeout.
inline Call step_of(const Call& whole, Op op, Buffer in, Buffer out, int root = 0) {
  Call call;
  call.op = op;
  call.dtype = whole.dtype;
  call.red = whole.red;
  call.in = in;
  call.out = out;
  call.root = root;
  call.priority = whole.priority;
  call.timeout = whole.timeout;
  return call;
}

/// The name of an operation's equal or vectored form: "all_gather", "all_gatherv".
std::string operation_name(Op op, bool vectored);

/// The size of a call, in elements, as all ranks see it: the tensor's; for gathers, scatters and their reducing forms
/// that of all ranks' data; for exchanges that of one rank's data. -1 where ranks may see different counts: vectored
/// calls other than all_gather and reduce_scatter.
int64_t message_elements(const Call& call, int ranks);
/// As message_elements(), in bytes, by which tables are indexed; the caller's hint counts first.
int64_t message_bytes(const Call& call, int ranks);

/// The elements of the tensor, or of each rank's block; of calls with equal counts.
int64_t block_elements(const Call& call, int ranks);
/// Whether the data can be reduced in steps, by partial results; true if the call reduces nothing.
bool reduces_in_steps(const Call& call);

/// The displacements of blocks without gaps.
std::vector<int64_t> contiguous(std::span<const int64_t> counts);

/// The block of a rank, on a side of the call that has one for each rank.
Buffer in_block(const Call& call, int ranks, int rank);
Buffer out_block(const Call& call, int ranks, int rank);

/// Elements on one side of this rank's call, without the gaps between blocks.
int64_t sent_elements(const Call& call);
int64_t received_elements(const Call& call);
/// The larger of the two, in bytes.
int64_t larger_side_bytes(const Call& call);

/// The errors of a receive, into `count` elements, whose message has another size. `received`: elements; none if the
/// message is no whole number of them.
Error larger_message(int64_t count, DType dtype);
Error shorter_message(std::optional<int64_t> received, int64_t count, DType dtype, int source);

}  // namespace mcr
