// SPDX-License-Identifier: Apache-2.0
// Streams, events and memory of devices, as far as the core needs them. The core knows no device's library: the
// bindings implement this on torch's device-generic API, and the host has a form of its own in which everything is
// complete at once.
#pragma once

#include <cstdint>
#include <memory>

#include "base/types.h"

namespace mcr {

/// A queue of a device's work. A plain value; streams are never destroyed.
struct Stream {
  Device device;
  int64_t id = 0;          // torch's number of it
  void* handle = nullptr;  // what libraries take: a cudaStream_t; null on the host
  bool operator==(const Stream&) const = default;
};

/// A point in a stream's work. Not thread-safe, except ready() beside join().
class Event {
 public:
  virtual ~Event() = default;
  /// Moves it to the end of what the stream has been given so far.
  virtual void record(const Stream& stream) = 0;
  /// What the stream is given from now on waits for it. The host does not.
  virtual void join(const Stream& stream) = 0;
  /// Whether the stream has passed it. Never waits.
  virtual bool ready() = 0;
  /// The host waits for it.
  virtual void synchronize() = 0;
  /// Milliseconds from an earlier event of the same device; both made with timing, recorded and passed.
  virtual double since(Event& earlier) = 0;
};

enum class CopyKind : uint8_t { Within, ToHost, ToDevice };

/// A kind of device. All methods are thread-safe; "current" is meant for the calling thread.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual Stream current(Device device) = 0;
  /// Makes the stream that of its device; returns the one before.
  virtual Stream exchange(const Stream& stream) = 0;
  /// Makes the device current; returns the one before.
  virtual Device exchange(Device device) = 0;
  /// Makes the device current again. Touches no device that this process does not use otherwise.
  virtual void restore(Device device) noexcept { static_cast<void>(device); }
  /// A stream of our own.
  virtual Stream make_stream(Device device, bool high_priority) = 0;
  virtual std::unique_ptr<Event> make_event(bool timing) = 0;
  /// Device memory in the order of the current stream, as torch's tensors have it.
  virtual std::shared_ptr<void> allocate(Device device, int64_t bytes) = 0;
  /// Host memory that the device can copy from and to while the host goes on.
  virtual std::shared_ptr<void> allocate_pinned(Device device, int64_t bytes) = 0;
  /// Enqueues a copy. The host goes on, if its memory is pinned.
  virtual void copy(void* to, const void* from, int64_t bytes, CopyKind kind, const Stream& stream) = 0;
  /// Whether the stream's work is being recorded into a graph instead of done.
  virtual bool capturing(const Stream& stream) = 0;
  /// Called once by a thread that only looks after what others have issued: it must not disturb a graph that another
  /// thread is recording.
  virtual void enter_background() {}

  /// That of a kind of device; throws Unavailable if it has none here.
  static DeviceRuntime& of(DeviceType type);
  /// Called once for each kind, before anything uses it. The host has one from the start.
  static void add(DeviceType type, std::unique_ptr<DeviceRuntime> runtime);
  /// enter_background() of all that there are.
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
