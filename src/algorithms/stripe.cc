// SPDX-License-Identifier: Apache-2.0
#include "algorithms/stripe.h"

#include "algorithms/pieces.h"

namespace mcr {

namespace {

constexpr int64_t kGrain = 64;  // elements

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
  const auto first = [&](int64_t count) { return Span{0, first_piece(count, stripes)}; };
  const auto rest = [&](int64_t count) {
    const int64_t begin = first_piece(count, stripes);
    return Span{begin, count - begin};
  };
  issue_part(call, size, {first, 0, packed || stripes.packed[0], false}, schedule);
  issue_part(call, size, {rest, 1, packed || stripes.packed[1], false}, schedule);
}

}  // namespace mcr
