// SPDX-License-Identifier: Apache-2.0
#include "device/stream_pool.h"

#include <atomic>
#include <utility>

#include "base/immortal.h"

namespace mcr {

namespace {

std::atomic<bool> high_priority{false};

// Later lanes share these: torch has 32 streams of each priority, which the program uses too.
constexpr int kMost = 8;

}  // namespace

void StreamPool::prefer_high_priority(bool high) noexcept { high_priority = high; }

int StreamPool::reserve(int count) {
  const std::lock_guard lock(mutex_);
  return std::exchange(reserved_, reserved_ + count);
}

Stream StreamPool::lane(Device device, int index) {
  const std::lock_guard lock(mutex_);
  index %= kMost;
  auto& lanes = lanes_[device];
  while (std::cmp_less_equal(lanes.size(), index)) {
    lanes.push_back(DeviceRuntime::of(device.type).make_stream(device, high_priority));
  }
  return lanes[static_cast<std::size_t>(index)];
}

LaunchOrder& LaunchOrder::of(Device device) {
  struct Orders {
    std::mutex mutex;
    std::map<Device, LaunchOrder> all;
  };
  static auto& orders = immortal<Orders>();
  const std::lock_guard lock(orders.mutex);
  return orders.all[device];
}

void LaunchOrder::join_last(const Stream& stream) {
  if (last_ != nullptr) last_->join(stream);
}

void LaunchOrder::note_last(const Stream& stream) {
  if (last_ == nullptr) last_ = take_event(stream.device);
  last_->record(stream);
}

}  // namespace mcr
