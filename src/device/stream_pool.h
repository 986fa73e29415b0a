// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "device/event_pool.h"

namespace mcr {

/// The streams of one backend: a few per device, made on first use, so that what it does overlaps with other backends'
/// work and with the program's. Thread-safe.
class StreamPool {
 public:
  /// Whether streams that are made from now on come first on their device, in the whole process.
  static void prefer_high_priority(bool high) noexcept;
  Stream lane(Device device, int index);

 private:
  std::mutex mutex_;
  std::map<std::pair<int, int>, std::vector<Stream>> lanes_;  // by device; guarded by mutex_
};

/// The one order in which this process gives work to a device. Its backends' operations may wait for other ranks while
/// they hold the device, so all ranks must start them in one order: that of the calls.
class LaunchOrder {
 public:
  static LaunchOrder& of(Device device);

  /// Held while a call is issued; again by calls inside a batch.
  std::unique_lock<std::recursive_mutex> lock() { return std::unique_lock(mutex_); }
  /// For libraries that do not keep the order themselves: what was issued last comes first. With the lock held.
  void join_last(const Stream& stream);
  void note_last(const Stream& stream);

 private:
  std::recursive_mutex mutex_;
  PooledEvent last_;
};

}  // namespace mcr
