// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "base/error.h"
#include "device/device.h"

namespace mcr {

struct ReturnEvent {
  Device device;
  bool timing = false;
  void operator()(Event* event) const noexcept;
};

/// An event from the process's pool, to which it returns.
using PooledEvent = std::unique_ptr<Event, ReturnEvent>;

/// Takes an event for the streams of a device. From any thread. A stream that has joined an event no longer needs it:
/// the event may be returned at once.
PooledEvent take_event(Device device, bool timing = false);

/// The position of an asynchronous operation in a device's work. Any thread may query it; one thread records it, once.
class StreamPoint {
 public:
  /// `caller`: the stream behind whose work the operation is enqueued.
  explicit StreamPoint(const Stream& caller, bool timing = false)
      : event_(take_event(caller.device, timing)),
        caller_(caller),
        captured_(DeviceRuntime::of(caller.device.type).capturing(caller)) {}

  /// Makes a stream wait for the work that another one of the device has so far. Before record(), with the device
  /// current.
  void follow(const Stream& stream, const Stream& before) {
    event_->record(before);
    event_->join(stream);
  }
  /// The operation has failed on the host. Before record().
  void fail(const Error& error) { failure_ = error; }
  /// The error of the recorded work. After record().
  const std::optional<Error>& failure() const { return failure_; }
  /// With the stream's device current.
  void record(const Stream& stream) {
    stream_ = stream;
    event_->record(stream);
    recorded_.store(true, std::memory_order_release);
  }
  /// False: the operation has not been enqueued on the device yet.
  bool recorded() const { return recorded_.load(std::memory_order_acquire); }
  /// Whether the device has passed it.
  bool passed() { return recorded() && event_->ready(); }
  /// Makes work enqueued on the stream from now on run after the operation. The point must be recorded, and the
  /// stream's device current.
  void join(const Stream& stream) { event_->join(stream); }

  Event& event() { return *event_; }
  const Stream& caller() const { return caller_; }
  /// The caller's stream is not torch's, so it is not the current stream when the caller waits: wait() makes it wait
  /// too.
  void set_external_stream() { external_stream_.store(true, std::memory_order_relaxed); }
  bool external_stream() const { return external_stream_.load(std::memory_order_relaxed); }
  /// The stream on which it was recorded.
  const Stream& stream() const { return stream_; }
  /// Captured into a graph: the host learns nothing from the event.
  bool captured() const { return captured_; }

 private:
  PooledEvent event_;
  Stream caller_, stream_;
  bool captured_;
  std::optional<Error> failure_;
  std::atomic<bool> recorded_{false};
  std::atomic<bool> external_stream_{false};
};

}  // namespace mcr
