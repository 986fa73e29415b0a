// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/call.h"
#include "base/lazy_vector.h"
#include "base/scratch.h"
#include "device/device.h"

namespace mcr {

/// A piece of the caller's memory: one tensor of a list, or one block of a tensor.
struct Block {
  void* data = nullptr;
  int64_t count = 0;  // elements
};

/// How errors name a call and its arguments, as the caller spelled them. Null: the op's name, or "root" and "peer".
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

/// The needs of a call in addition to the backend's work: memory that lives as long as the operation, and the steps
/// left when the backend has finished. An ordinary call leaves it empty, which costs nearly nothing.
struct Extras {
  const Names* names = &kNames;             // valid only until the call has been issued
  LazyVector<Block> in_blocks, out_blocks;  // list forms: the tensors of the list
  LazyVector<std::vector<int64_t>> counts;  // the Call's spans point to these
  LazyVector<Scratch> scratch;
  // For a device's call: copies in stream order, before and after the operation.
  LazyVector<std::function<void(const Stream&)>> before, behind;
  LazyVector<std::function<void()>> finish;  // run in order, once, on the thread that sees completion
  LazyVector<std::function<void()>> after;   // steps of passes: run after all of `finish`, the last one first
  LazyVector<std::shared_ptr<void>> owned;   // other objects to keep alive as long
  std::function<void()> deliver;             // unflatten() puts it behind the copies to the list's tensors
  std::shared_ptr<void> (*keep)(void* keeper) = nullptr;  // makes `kept`, for calls that outlive their caller
  void* keeper = nullptr;                                 // valid as long as `names`
  std::shared_ptr<void> kept;                             // the caller's tensors
  void (*release)(void* kept) = nullptr;                  // releases tensors that only the running operation needs
  bool sent = false;  // set when the call fails: whether a backend may have got a part of it

  std::span<const int64_t> keep_counts(std::vector<int64_t> values) { return counts.emplace_back(std::move(values)); }
  /// Displacements of contiguous blocks.
  std::span<const int64_t> keep_packed(std::span<const int64_t> block_counts) {
    return keep_counts(contiguous(block_counts));
  }
  void conclude() {
    if (finish.empty() && after.empty()) [[likely]]
      return;
    for (auto& step : finish) step();
    for (auto step = after.rbegin(); step != after.rend(); ++step) (*step)();
  }
  /// Memory on the device of the call's tensors.
  void* allocate(Device device, int64_t bytes) {
    if (device.type != DeviceType::CPU) {
      return owned.emplace_back(DeviceRuntime::of(device.type).allocate(device, bytes)).get();
    }
    return scratch.emplace_back(bytes).get();
  }
};

}  // namespace mcr
