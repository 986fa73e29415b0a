// SPDX-License-Identifier: Apache-2.0
#include "device/device_times.h"

#include <chrono>
#include <cmath>
#include <map>
#include <mutex>

#include "base/immortal.h"

namespace mcr {

/// One moment on both clocks.
struct DeviceTimes::Reference {
  Stream stream;
  PooledEvent event;
  int64_t host = 0;
};

namespace {

using Reference = DeviceTimes::Reference;

// Events give milliseconds in 32 bits: to be exact to a microsecond, later events need a newer reference.
constexpr int64_t kLifetime = int64_t{10} * 1000 * 1000 * 1000;

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::shared_ptr<Reference> make_reference(const Stream& stream) {
  auto made = std::make_shared<Reference>(Reference{stream, take_event(stream.device, true), now()});
  made->event->record(stream);
  return made;
}

std::shared_ptr<Reference> reference_of(Device device) {
  struct References {
    std::mutex mutex;
    std::map<Device, std::shared_ptr<Reference>> all;
  };
  static auto& references = immortal<References>();
  const std::lock_guard lock(references.mutex);
  auto& found = references.all[device];
  if (found == nullptr) {
    found = make_reference(DeviceRuntime::of(device.type).make_stream(device, false));
  } else if (now() - found->host > kLifetime) {
    found = make_reference(found->stream);
  }
  return found;
}

}  // namespace

DeviceTimes::DeviceTimes(const Stream& stream)
    : reference_(reference_of(stream.device)), begin_(take_event(stream.device, true)), end_(stream, true) {
  begin_->record(stream);
}

void DeviceTimes::finish(const Stream& stream) { end_.record(stream); }

DeviceTimes::Span DeviceTimes::read() {
  const auto at = [&](Event& event) { return reference_->host + std::llround(event.since(*reference_->event) * 1e6); };
  return {at(*begin_), at(end_.event())};
}

}  // namespace mcr
