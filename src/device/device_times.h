// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "device/event_pool.h"

namespace mcr {

/// When a device did an operation, on the host's clock: two events with timing, read once the device has passed them,
/// so that nobody ever waits. The clocks are compared on a stream that has nothing else to do, every ten seconds; what
/// that takes, some microseconds, is the error of the times, not of their difference.
class DeviceTimes {
 public:
  struct Reference;
  struct Span {
    int64_t start, end;  // nanoseconds of steady_clock
  };

  /// The operation comes next in the stream.
  explicit DeviceTimes(const Stream& stream);
  /// It is behind. Once.
  void finish(const Stream& stream);
  /// Whether read() can tell.
  bool ready() { return end_.passed(); }
  Span read();

 private:
  std::shared_ptr<Reference> reference_;
  PooledEvent begin_;
  StreamPoint end_;
};

}  // namespace mcr
