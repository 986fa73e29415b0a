// SPDX-License-Identifier: Apache-2.0
#include "base/call.h"

#include <algorithm>
#include <numeric>

namespace mcr {

namespace {

int64_t sum(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

std::string tensor_of(int64_t count, DType dtype) {
  return "the tensor of " + std::to_string(count) + " elements of " + std::string(row(dtype).name);
}

Buffer block(const Call& call, const Buffer& whole, std::span<const int64_t> counts, std::span<const int64_t> displs,
             int ranks, int rank) {
  const auto index = static_cast<std::size_t>(rank);
  if (call.vectored) return slice(whole, call.dtype, displs[index], counts[index]);
  const int64_t count = whole.count / ranks;
  return slice(whole, call.dtype, rank * count, count);
}

}  // namespace

std::string operation_name(Op op, bool vectored) { return std::string(row(op).name) + (vectored ? "v" : ""); }

int64_t message_elements(const Call& call, int ranks) {
  if (call.vectored) {
    if (call.op == Op::all_gather) return sum(call.out_counts);
    return call.op == Op::reduce_scatter ? sum(call.in_counts) : -1;
  }
  switch (row(call.op).extent) {
    case Extent::Same:
      return call.out.count;
    case Extent::Gather:
      return call.in.count * ranks;
    case Extent::Scatter:
      return call.out.count * ranks;
    case Extent::Exchange:
      return call.in.count;
    case Extent::None:
      break;
  }
  return 0;
}

int64_t message_bytes(const Call& call, int ranks) {
  if (call.size_hint >= 0) return call.size_hint;
  const auto elements = message_elements(call, ranks);
  return elements < 0 ? elements : elements * size_of(call.dtype);
}

int64_t block_elements(const Call& call, int ranks) {
  switch (row(call.op).extent) {
    case Extent::Gather:
      return call.in.count;
    case Extent::Exchange:
      return call.in.count / ranks;
    default:
      return call.out.count;
  }
}

bool reduces_in_steps(const Call& call) {
  if (!row(call.op).is(kReduces)) return true;
  return defined(call.dtype, call.red) && call.red != RedOp::AVG && call.red != RedOp::PREMUL_SUM;
}

std::vector<int64_t> contiguous(std::span<const int64_t> counts) {
  std::vector<int64_t> displs(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), displs.begin(), int64_t{0});
  return displs;
}

Buffer in_block(const Call& call, int ranks, int rank) {
  return block(call, call.in, call.in_counts, call.in_displs, ranks, rank);
}

Buffer out_block(const Call& call, int ranks, int rank) {
  return block(call, call.out, call.out_counts, call.out_displs, ranks, rank);
}

int64_t sent_elements(const Call& call) { return call.in_counts.empty() ? call.in.count : sum(call.in_counts); }

int64_t received_elements(const Call& call) { return call.out_counts.empty() ? call.out.count : sum(call.out_counts); }

int64_t larger_side_bytes(const Call& call) {
  return std::max(sent_elements(call), received_elements(call)) * size_of(call.dtype);
}

Error larger_message(int64_t count, DType dtype) {
  return {ErrorCode::InvalidArgument, "the incoming message is larger than " + tensor_of(count, dtype)};
}

Error shorter_message(std::optional<int64_t> received, int64_t count, DType dtype, int source) {
  return {ErrorCode::InvalidArgument,
          "received " + (received ? std::to_string(*received) : "a message that is no whole number of elements") +
              " of " + tensor_of(count, dtype) + ", from rank " + std::to_string(source)};
}

}  // namespace mcr
