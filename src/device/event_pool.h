// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>

#include "device/device.h"

namespace mcr {

struct ReturnEvent {
  Device device;
  bool timing = false;
  void operator()(Event* event) const noexcept;
};

/// An event of the process's pool, which gets it back.
using PooledEvent = std::unique_ptr<Event, ReturnEvent>;

/// An event for the streams of a device. From any thread. A stream that has joined an event does not need it any more:
/// it may go back at once.
PooledEvent take_event(Device device, bool timing = false);

/// Where an asynchronous operation stands in a device's work. Any thread may look at it; one thread records it, once.
class StreamPoint {
 public:
  /// `caller`: the stream whose work the operation comes behind.
  explicit StreamPoint(const Stream& caller, bool timing = false)
      : event_(take_event(caller.device, timing)),
        caller_(caller),
        captured_(DeviceRuntime::of(caller.device.type).capturing(caller)) {}

  void record(const Stream& stream) {
    stream_ = stream;
    event_->record(stream);
    recorded_.store(true, std::memory_order_release);
  }
  /// False: the operation has not been given to the device yet.
  bool recorded() const { return recorded_.load(std::memory_order_acquire); }
  /// Whether the device has passed it.
  bool passed() { return recorded() && event_->ready(); }
  /// What the stream is given from now on comes behind the operation. It must be recorded.
  void join(const Stream& stream) { event_->join(stream); }

  Event& event() { return *event_; }
  const Stream& caller() const { return caller_; }
  /// The caller's stream is not torch's, so nobody makes it current when he waits: it waits too.
  void set_foreign() { foreign_.store(true, std::memory_order_relaxed); }
  bool foreign() const { return foreign_.load(std::memory_order_relaxed); }
  /// The stream that it was recorded on.
  const Stream& stream() const { return stream_; }
  /// In a graph that is being recorded: the event then says nothing to the host.
  bool captured() const { return captured_; }

 private:
  PooledEvent event_;
  Stream caller_, stream_;
  bool captured_;
  std::atomic<bool> recorded_{false};
  std::atomic<bool> foreign_{false};
};

}  // namespace mcr
