// SPDX-License-Identifier: Apache-2.0
#include "algorithms/fuse.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace mcr {

namespace {

// The blocks of the calls in a fused buffer: one after the other, `rounds` times.
struct Layout {
  std::vector<Buffer> blocks;  // of the calls in the first round; those of the next round follow in the calls' memory
  int rounds;
  DType dtype;

  int64_t elements() const {
    int64_t sum = 0;
    for (const auto& block : blocks) sum += block.count;
    return sum * rounds;
  }

  template <class Copy>  // copy(address in the fused buffer, address in the call's, bytes)
  void each(void* fused, Copy copy) const {
    auto* at = static_cast<std::byte*>(fused);
    for (int round = 0; round < rounds; ++round) {
      for (const auto& block : blocks) {
        const auto size = static_cast<std::size_t>(block.count * size_of(dtype));
        if (size != 0) copy(at, static_cast<std::byte*>(block.data) + static_cast<std::size_t>(round) * size, size);
        at += size;
      }
    }
  }
};

Layout layout(std::span<const Call> calls, Buffer Call::* side, int rounds) {
  Layout made{{}, rounds, calls.front().dtype};
  for (const auto& call : calls) made.blocks.push_back({(call.*side).data, (call.*side).count / rounds});
  return made;
}

Schedule::Id fill(Schedule& schedule, Buffer fused, Layout from) {
  return schedule.copy_by(fused, fused, from.dtype, [fused, from = std::move(from)](Schedule&) {
    from.each(fused.data, [](void* to, const void* part, std::size_t size) { std::memcpy(to, part, size); });
  });
}

}  // namespace

Schedule::Id fuse(std::span<const Call> calls, int rank, int size, Schedule& schedule, int64_t least) {
  Call fused = calls.front();
  for (const auto& call : calls) fused.timeout = std::max(fused.timeout, call.timeout);
  const auto reserve = [&](const Layout& one) {
    return Buffer{schedule.scratch(std::max(one.elements() * size_of(one.dtype), least)), one.elements()};
  };
  auto outs = layout(calls, &Call::out, fused.op == Op::all_gather ? size : 1);
  fused.out = reserve(outs);
  const bool receives = fused.op != Op::broadcast || fused.root != rank;
  Schedule::Ids filled;
  if (row(fused.op).extent != Extent::Same) {
    auto ins = layout(calls, &Call::in, fused.op == Op::reduce_scatter ? size : 1);
    fused.in = reserve(ins);
    filled = {fill(schedule, fused.in, std::move(ins))};
  } else if (fused.op != Op::broadcast || !receives) {
    filled = {fill(schedule, fused.out, outs)};
  }
  const auto issued = schedule.issue(fused, filled);
  // A pass that encodes a broadcast changes the root's values too. Otherwise its memory, which may be read-only, is not
  // written.
  const auto copy = [receives](const void* part, void* out, std::size_t bytes) {
    if (receives || std::memcmp(out, part, bytes) != 0) std::memcpy(out, part, bytes);
  };
  schedule.copy_by(fused.out, fused.out, fused.dtype,
                   [from = fused.out, to = std::move(outs), copy](Schedule&) { to.each(from.data, copy); }, {issued});
  return issued;
}

}  // namespace mcr
