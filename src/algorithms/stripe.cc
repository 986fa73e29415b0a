// SPDX-License-Identifier: Apache-2.0
#include "algorithms/stripe.h"

#include "algorithms/pieces.h"

namespace mcr {

namespace {

constexpr int64_t kGrain = 64;  // elements

Span first_of(int64_t count, const void* stripes) {
  return {0, first_piece(count, *static_cast<const Stripes*>(stripes))};
}

Span rest_of(int64_t count, const void* stripes) {
  const int64_t first = first_of(count, stripes).count;
  return {first, count - first};
}

}  // namespace

int64_t first_piece(int64_t count, const Stripes& stripes) {
  // This order avoids overflow for large counts.
  const int64_t exact =
      count / Stripes::kWhole * stripes.share + count % Stripes::kWhole * stripes.share / Stripes::kWhole;
  return exact / kGrain * kGrain;
}

void stripe(const Call& call, int size, const Stripes& stripes, Schedule& schedule) {
  // A reduce_scatter's blocks have counts, and no displacements.
  const bool packed = !call.vectored || call.op == Op::reduce_scatter;
  issue_part(call, size, {first_of, &stripes, 0, packed || stripes.packed[0], false}, schedule);
  issue_part(call, size, {rest_of, &stripes, 1, packed || stripes.packed[1], false}, schedule);
}

}  // namespace mcr
