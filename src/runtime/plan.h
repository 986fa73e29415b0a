// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/call.h"
#include "base/lazy_vector.h"
#include "device/device.h"

namespace mcr {

/// A piece of a caller's memory: one tensor of a list, or one block of a tensor.
struct Block {
  void* data = nullptr;
  int64_t count = 0;  // elements
};

/// How errors name a call and its arguments: as the caller has spelt them. Null: the op's name, or "root" and "peer".
struct Names {
  const char* function = nullptr;
  const char* in = "input";
  const char* out = "output";
  const char* in_counts = "input counts";
  const char* out_counts = "output counts";
  const char* in_displs = "input displacements";
  const char* out_displs = "output displacements";
  const char* root = nullptr;
};

inline constexpr Names kNames;

/// What a call needs beside the backend's work: memory that lives as long as the operation, and what is left to do when
/// the backend has finished. An ordinary call leaves it empty, which costs nearly nothing.
struct Plan {
  const Names* names = &kNames;             // of use until the call has been issued, no longer
  LazyVector<Block> in_blocks, out_blocks;  // list forms: the tensors of the list
  LazyVector<std::vector<int64_t>> counts;  // what the Call's spans point to
  LazyVector<std::unique_ptr<std::byte[]>> scratch;
  // Of a device's call: copies in the order of its stream, before the operation and behind it.
  LazyVector<std::function<void(const Stream&)>> before, behind;
  LazyVector<std::function<void()>> finish;  // in order, once, on the thread that sees completion
  LazyVector<std::function<void()>> after;   // the same, of passes: behind all of `finish`, the last one first
  LazyVector<std::shared_ptr<void>> owned;   // what else must live as long
  std::function<void()> deliver;             // unflatten() puts it behind the copies of the lists' tensors
  std::shared_ptr<void> (*keep)(void* keeper) = nullptr;  // makes `kept`, for calls that outlive their caller
  void* keeper = nullptr;                                 // of use as long as `names`
  std::shared_ptr<void> kept;                             // the caller's tensors
  void (*release)(void* kept) = nullptr;                  // gives up what only the running operation needs of it

  std::span<const int64_t> keep_counts(std::vector<int64_t> values) { return counts.emplace_back(std::move(values)); }
  /// Displacements of blocks that lie one behind the other.
  std::span<const int64_t> keep_packed(std::span<const int64_t> block_counts) {
    std::vector<int64_t> displs(block_counts.size());
    std::exclusive_scan(block_counts.begin(), block_counts.end(), displs.begin(), int64_t{0});
    return keep_counts(std::move(displs));
  }
  void conclude() {
    if (finish.empty() && after.empty()) [[likely]]
      return;
    for (auto& step : finish) step();
    for (auto step = after.rbegin(); step != after.rend(); ++step) (*step)();
  }
  /// Memory of the device that the call's tensors are on.
  void* allocate(Device device, int64_t bytes) {
    if (device.type != DeviceType::CPU) {
      return owned.emplace_back(DeviceRuntime::of(device.type).allocate(device, bytes)).get();
    }
    return scratch.emplace_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes))).get();
  }
};

}  // namespace mcr
