// SPDX-License-Identifier: Apache-2.0
#include "base/call.h"

#include <numeric>

namespace mcr {

namespace {

int64_t sum(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

}  // namespace

int64_t message_bytes(const Call& call, int ranks) {
  if (call.size_hint >= 0) return call.size_hint;
  const int64_t element = size_of(call.dtype);
  if (call.vectored) {
    if (call.op == Op::all_gather) return sum(call.out_counts) * element;
    if (call.op == Op::reduce_scatter) return sum(call.in_counts) * element;
    return -1;
  }
  switch (row(call.op).extent) {
    case Extent::Same:
      return call.out.count * element;
    case Extent::Gather:
      return call.in.count * ranks * element;
    case Extent::Scatter:
      return call.out.count * ranks * element;
    case Extent::Exchange:
      return call.in.count * element;
    case Extent::None:
      break;
  }
  return 0;
}

}  // namespace mcr
