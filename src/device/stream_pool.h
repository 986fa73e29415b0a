// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "device/event_pool.h"

namespace mcr {

/// The streams of one backend, made on first use, so that its operations overlap with the work of other backends and of
/// the program. Each communicator has its own, so that an operation waits only for those of its group; after the first
/// ones, communicators share them. Thread-safe.
class StreamPool {
 public:
  /// Whether streams made from now on, in the whole process, have high priority on their device.
  static void prefer_high_priority(bool high) noexcept;
  /// The first of so many lanes for a new communicator.
  int reserve(int count);
  Stream lane(Device device, int index);

 private:
  std::mutex mutex_;
  int reserved_ = 0;                             // guarded by mutex_
  std::map<Device, std::vector<Stream>> lanes_;  // guarded by mutex_
};

/// The one order in which this process issues work to a device. Operations of its backends may hold the device while
/// they wait for other ranks, so all ranks must start them in one order: the order of the calls.
class LaunchOrder {
 public:
  static LaunchOrder& of(Device device);

  /// Held while a call is issued; taken recursively by calls inside a batch.
  std::unique_lock<std::recursive_mutex> lock() { return std::unique_lock(mutex_); }
  /// For libraries that do not keep the order themselves: makes the stream wait for the operation issued last. With the
  /// lock held.
  void join_last(const Stream& stream);
  void note_last(const Stream& stream);

 private:
  std::recursive_mutex mutex_;
  PooledEvent last_;
};

}  // namespace mcr
