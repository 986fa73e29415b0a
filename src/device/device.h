// SPDX-License-Identifier: Apache-2.0
// Streams, events and memory of devices, as far as the core needs them. The core does not know any device's library:
// the bindings implement this interface with torch's device-generic API, and the host has an implementation in which
// everything is complete at once.
#pragma once

#include <cstdint>
#include <memory>

#include "base/types.h"

namespace mcr {

/// A queue of a device's work. A plain value; streams are never destroyed.
struct Stream {
  Device device;
  int64_t id = 0;          // torch's stream id
  void* handle = nullptr;  // the handle that libraries take: a cudaStream_t; null on the host
  bool operator==(const Stream&) const = default;
};

/// A point in a stream's work. Not thread-safe, except that ready() may run concurrently with join().
class Event {
 public:
  virtual ~Event() = default;
  /// Moves the event to the end of the work enqueued on the stream so far. The stream's device must be current.
  virtual void record(const Stream& stream) = 0;
  /// Makes work enqueued on the stream from now on wait for the event. The host does not wait. The stream's device must
  /// be current.
  virtual void join(const Stream& stream) = 0;
  /// Whether the stream has passed the event. Never waits.
  virtual bool ready() = 0;
  /// Milliseconds since an earlier event of this device; both must be made with timing, recorded and passed.
  virtual double since(Event& earlier) = 0;
};

enum class CopyKind : uint8_t { Within, ToHost, ToDevice };

/// A kind of device. All methods are thread-safe; "current" refers to the calling thread.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual Stream current(Device device) = 0;
  /// Makes the stream the current one of its device; returns the previous one.
  virtual Stream exchange(const Stream& stream) = 0;
  /// Makes the device current; returns the previous one.
  virtual Device exchange(Device device) = 0;
  /// Makes the device current again. Does not touch a device that this process does not use otherwise.
  virtual void restore(Device device) noexcept { static_cast<void>(device); }
  /// A new stream, for the core's own use.
  virtual Stream make_stream(Device device, bool high_priority) = 0;
  virtual std::unique_ptr<Event> make_event(bool timing) = 0;
  /// Device memory, ordered by the current stream like the memory of torch's tensors.
  virtual std::shared_ptr<void> allocate(Device device, int64_t bytes) = 0;
  /// Host memory that the device can copy from and to without the host waiting.
  virtual std::shared_ptr<void> allocate_pinned(Device device, int64_t bytes) = 0;
  /// Enqueues a copy. The host does not wait if its memory is pinned.
  virtual void copy(void* to, const void* from, int64_t bytes, CopyKind kind, const Stream& stream) = 0;
  /// Whether the stream's work is being captured into a graph instead of executed.
  virtual bool capturing(const Stream& stream) = 0;
  /// Called once by each thread that only watches work issued by others: it must not disturb a graph that another
  /// thread is capturing.
  virtual void enter_background() {}

  /// The runtime of a kind of device; throws Unavailable if there is none here.
  static DeviceRuntime& of(DeviceType type);
  /// Called once for each kind, before any use. The host's runtime exists from the start.
  static void add(DeviceType type, std::unique_ptr<DeviceRuntime> runtime);
  /// Calls enter_background() of all runtimes.
  static void enter_background_everywhere();
};

/// Makes a device current for its lifetime.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device) : runtime_(DeviceRuntime::of(device.type)), before_(runtime_.exchange(device)) {}
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() { runtime_.restore(before_); }

 private:
  DeviceRuntime& runtime_;
  Device before_;
};

/// Makes a stream and its device current for its lifetime.
class StreamGuard {
 public:
  explicit StreamGuard(const Stream& stream)
      : device_(stream.device), runtime_(DeviceRuntime::of(stream.device.type)), before_(runtime_.exchange(stream)) {}
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;
  ~StreamGuard() { runtime_.exchange(before_); }

 private:
  DeviceGuard device_;
  DeviceRuntime& runtime_;
  Stream before_;
};

}  // namespace mcr
