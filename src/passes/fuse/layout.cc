// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse/layout.h"

#include <cstring>
#include <utility>

namespace mcr {

namespace {

using Lease = std::shared_ptr<std::byte[]>;

// The blocks of the calls in the fused buffer: one after the other, `rounds` times.
struct Layout {
  std::vector<Block> blocks;  // of the calls; block r of a call follows block r - 1
  int rounds;
  DType dtype;

  int64_t elements() const {
    int64_t sum = 0;
    for (const auto& block : blocks) sum += block.count;
    return sum * rounds;
  }
  int64_t bytes() const { return elements() * size_of(dtype); }

  template <class Copy>  // copy(address in the fused buffer, address in the call's, bytes)
  void each(std::byte* fused, Copy copy) const {
    for (int round = 0; round < rounds; ++round) {
      for (const auto& block : blocks) {
        const auto size = static_cast<std::size_t>(block.count * size_of(dtype));
        copy(fused, static_cast<std::byte*>(block.data) + static_cast<std::size_t>(round) * size, size);
        fused += size;
      }
    }
  }
};

// Blocks per rank, on the side that has them: `count` is for one round.
Layout layout(std::span<const Call> calls, Buffer Call::* side, int rounds) {
  Layout made{{}, rounds, calls.front().dtype};
  for (const auto& call : calls) made.blocks.push_back({(call.*side).data, (call.*side).count / rounds});
  return made;
}

void fill(const Layout& layout, std::byte* fused) {
  layout.each(fused, [](std::byte* to, const std::byte* from, std::size_t size) { std::memcpy(to, from, size); });
}

}  // namespace

std::shared_ptr<std::byte[]> FusePool::lease(int64_t bytes) {
  if (bytes > state_->bytes) return std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
  std::unique_ptr<std::byte[]> buffer;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->idle.empty()) {
      buffer = std::move(state_->idle.back());
      state_->idle.pop_back();
    }
  }
  if (!buffer) buffer = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(state_->bytes));
  return {buffer.release(), [state = state_](std::byte* used) {
            std::unique_ptr<std::byte[]> owned(used);
            const std::lock_guard lock(state->mutex);
            state->idle.push_back(std::move(owned));
          }};
}

Call fuse_calls(std::span<const Call> calls, int rank, int size, FusePool& pool, Plan& plan) {
  Call fused = calls.front();
  const bool two_sided = row(fused.op).extent != Extent::Same;
  const bool receives = fused.op != Op::broadcast || fused.root != rank;
  const auto outs = layout(calls, &Call::out, fused.op == Op::all_gather ? size : 1);
  const Lease out = pool.lease(outs.bytes());
  fused.out = {out.get(), outs.elements()};
  Lease in;
  if (two_sided) {
    const auto ins = layout(calls, &Call::in, fused.op == Op::reduce_scatter ? size : 1);
    in = pool.lease(ins.bytes());
    fused.in = {in.get(), ins.elements()};
    fill(ins, in.get());
  } else if (fused.op != Op::broadcast || !receives) {
    fill(outs, out.get());
  }
  plan.owned = {out, in};
  if (receives) {
    plan.after.emplace_back([outs, from = out.get()] {
      outs.each(from, [](const std::byte* part, std::byte* to, std::size_t bytes) { std::memcpy(to, part, bytes); });
    });
  }
  return fused;
}

}  // namespace mcr
