// SPDX-License-Identifier: Apache-2.0
#include "engine/flatten.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace mcr {

namespace {

int64_t total(const std::vector<Block>& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), int64_t{0},
                         [](int64_t sum, const Block& b) { return sum + b.count; });
}

bool adjacent(const std::vector<Block>& blocks, DType dtype) {
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    if (at(blocks[i - 1].data, blocks[i - 1].count, dtype) != blocks[i].data) return false;
  }
  return true;
}

bool even(const std::vector<Block>& blocks) {
  return std::all_of(blocks.begin(), blocks.end(), [&](const Block& b) { return b.count == blocks.front().count; });
}

// Copies of elements, on the host or in stream order.
class Copies {
 public:
  Copies(Device device, DType dtype) : device_(device), dtype_(dtype) {}

  // On the host now; on a device before the operation.
  void gather_into(void* packed, std::vector<Block> blocks, Extras& extras) const {
    if (host()) return copy_all(blocks, packed, Way::Gather, nullptr);
    extras.before.emplace_back([copies = *this, packed, blocks = std::move(blocks)](const Stream& stream) {
      copies.copy_all(blocks, packed, Way::Gather, &stream);
    });
  }

  // On the host when the operation is complete; on a device after it, in its stream.
  void spread_from(std::vector<Block> blocks, void* packed, Extras& extras) const {
    if (host()) {
      extras.finish.emplace_back([copies = *this, blocks = std::move(blocks), packed] {
        copies.copy_all(blocks, packed, Way::Spread, nullptr);
      });
      return;
    }
    extras.behind.emplace_back([copies = *this, blocks = std::move(blocks), packed](const Stream& stream) {
      copies.copy_all(blocks, packed, Way::Spread, &stream);
    });
  }

 private:
  enum class Way : uint8_t { Gather, Spread };

  bool host() const { return device_.type == DeviceType::CPU; }

  // Between the blocks and a buffer that has them without gaps.
  void copy_all(const std::vector<Block>& blocks, void* packed, Way way, const Stream* stream) const {
    int64_t offset = 0;
    for (const auto& block : blocks) {
      void* part = at(packed, offset, dtype_);
      way == Way::Gather ? copy(part, block.data, block.count, stream) : copy(block.data, part, block.count, stream);
      offset += block.count;
    }
  }

  void copy(void* to, const void* from, int64_t count, const Stream* stream) const {
    if (count == 0) return;
    const int64_t bytes = count * size_of(dtype_);
    if (stream != nullptr) return DeviceRuntime::of(device_.type).copy(to, from, bytes, CopyKind::Within, *stream);
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }

  Device device_;
  DType dtype_;
};

std::span<const int64_t> counts_of(const std::vector<Block>& blocks, Extras& extras) {
  std::vector<int64_t> counts(blocks.size());
  std::transform(blocks.begin(), blocks.end(), counts.begin(), [](const Block& b) { return b.count; });
  return extras.keep_counts(std::move(counts));
}

std::vector<Block> spread(void* base, std::span<const int64_t> counts, std::span<const int64_t> displs, DType dtype) {
  std::vector<Block> blocks(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) blocks[i] = {at(base, displs[i], dtype), counts[i]};
  return blocks;
}

bool is_packed(std::span<const int64_t> counts, std::span<const int64_t> displs) {
  int64_t end = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (displs[i] != end) return false;
    end += counts[i];
  }
  return true;
}

}  // namespace

void require_even(const std::vector<Block>& blocks, const char* name, std::string_view op) {
  if (even(blocks)) return;
  const auto sizes = joined(blocks, [](const Block& block) { return std::to_string(block.count); });
  throw Error(ErrorCode::InvalidArgument, std::string(name) + ": expected tensors of equal size, got " + sizes +
                                              " elements" +
                                              (op.empty() ? "" : "; " + std::string(op) + "v takes different sizes"));
}

void flatten(Call& call, Extras& extras) {
  auto& ins = extras.in_blocks;
  auto& outs = extras.out_blocks;
  if (ins.empty() && outs.empty()) return;
  if (row(call.op).is(kRooted)) {
    require_even(ins, extras.names->in);
    require_even(outs, extras.names->out);
  }
  call.vectored = call.op == Op::all_to_all || !even(ins) || !even(outs);
  if (!ins.empty()) {
    call.in = {ins.front().data, total(ins)};
    if (!adjacent(ins, call.dtype)) {
      call.in.data = extras.allocate(call.device, call.in.count * size_of(call.dtype));
      Copies(call.device, call.dtype).gather_into(call.in.data, ins, extras);
    }
    if (call.vectored) call.in_counts = counts_of(ins, extras);
  }
  if (!outs.empty()) {
    call.out = {outs.front().data, total(outs)};
    if (call.vectored) call.out_counts = counts_of(outs, extras);
    if (adjacent(outs, call.dtype)) {
      outs.clear();
    } else {
      call.out.data = extras.allocate(call.device, call.out.count * size_of(call.dtype));
    }
  }
}

void pack(Call& call, Extras& extras) {
  if (!call.in_counts.empty() && call.in.data != nullptr && !is_packed(call.in_counts, call.in_displs)) {
    const auto blocks = spread(call.in.data, call.in_counts, call.in_displs, call.dtype);
    call.in = {extras.allocate(call.device, total(blocks) * size_of(call.dtype)), total(blocks)};
    Copies(call.device, call.dtype).gather_into(call.in.data, blocks, extras);
    call.in_displs = extras.keep_packed(call.in_counts);
  }
  if (!call.out_counts.empty() && call.out.data != nullptr && !is_packed(call.out_counts, call.out_displs)) {
    extras.out_blocks = spread(call.out.data, call.out_counts, call.out_displs, call.dtype);
    call.out = {extras.allocate(call.device, total(extras.out_blocks) * size_of(call.dtype)), total(extras.out_blocks)};
    call.out_displs = extras.keep_packed(call.out_counts);
  }
}

void unflatten(const Call& call, Extras& extras) {
  if (!extras.out_blocks.empty()) {
    Copies(call.device, call.dtype).spread_from(extras.out_blocks.take(), call.out.data, extras);
  }
  if (extras.deliver == nullptr) return;
  auto deliver = std::exchange(extras.deliver, nullptr);
  if (call.device.type == DeviceType::CPU) {
    extras.finish.push_back(std::move(deliver));
  } else {
    extras.behind.emplace_back([deliver = std::move(deliver)](const Stream& stream) {
      const StreamGuard current(stream);
      deliver();
    });
  }
}

void separate(Call& call, Extras& extras) {
  if (call.in.data == nullptr || call.out.data == nullptr) return;
  const auto* in = static_cast<const std::byte*>(call.in.data);
  const auto* out = static_cast<const std::byte*>(call.out.data);
  const auto bytes = size_of(call.dtype);
  if (in >= out + call.out.count * bytes || out >= in + call.in.count * bytes) return;
  void* copied = extras.allocate(call.device, call.in.count * bytes);
  Copies(call.device, call.dtype).gather_into(copied, {{call.in.data, call.in.count}}, extras);
  call.in.data = copied;
}

}  // namespace mcr
