// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "device/event_pool.h"

namespace mcr {

/// When a device ran an operation, on the host's clock: two events with timing, read once the device has passed them,
/// so that no thread waits. The clocks are compared every ten seconds on a stream without other work; the duration of
/// that comparison, some microseconds, is the error of the times, but not of their difference.
class DeviceTimes {
 public:
  struct Reference;
  struct Span {
    int64_t start, end;  // nanoseconds of steady_clock
  };

  /// Call just before the operation is enqueued on the stream.
  explicit DeviceTimes(const Stream& stream);
  /// Call once, just after the operation is enqueued.
  void finish(const Stream& stream);
  /// Whether the times can be read.
  bool ready() { return end_.passed(); }
  Span read();

 private:
  std::shared_ptr<Reference> reference_;
  PooledEvent begin_;
  StreamPoint end_;
};

}  // namespace mcr
