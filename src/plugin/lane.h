// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "device/device.h"

namespace mcr {

/// A started operation of a host backend. Not thread-safe, except block() and hurry() beside poll(); Work serialises
/// the rest.
class Request {
 public:
  virtual ~Request() = default;
  /// One step; never waits. True once complete; throws Error when the operation failed.
  virtual bool poll() = 0;
  /// Sleeps until the operation may be complete or `limit` has passed. False: this library has no way to sleep.
  virtual bool block(std::chrono::nanoseconds limit) {
    static_cast<void>(limit);
    return false;
  }
  /// Somebody waits for it: what holds it back for company should let it go. Cheap, and called more than once.
  virtual void hurry() {}
  /// The group rank that a completed receive came from; -1 for other operations.
  virtual int source() const { return -1; }
};

/// Where a call is issued. A blocking lane is the caller's own thread: the operation is complete when issue() returns.
/// A stream is a device's: the operation is enqueued there, and whoever has given the stream knows when it is complete.
/// Otherwise the backend starts it and leaves its Request with track().
class Lane {
 public:
  explicit Lane(bool blocking) : blocking_(blocking) {}
  /// `index`: which of Communicator::lanes() it is. Calls on one index are issued in the same order on all ranks.
  explicit Lane(const Stream& stream, int index = 0) : blocking_(false), stream_(stream), index_(index) {}
  bool blocking() const { return blocking_; }
  const Stream& stream() const { return *stream_; }  // of a lane that was made of one
  int index() const { return index_; }
  void track(std::unique_ptr<Request> request) { requests_.push_back(std::move(request)); }
  /// On a blocking lane: the group rank that a receive came from.
  void set_source(int rank) { source_ = rank; }
  int source() const { return source_; }
  bool pending() const { return !requests_.empty(); }
  std::vector<std::unique_ptr<Request>> take() { return std::exchange(requests_, {}); }

 private:
  bool blocking_;
  std::optional<Stream> stream_;
  int index_ = 0;
  int source_ = -1;
  std::vector<std::unique_ptr<Request>> requests_;
};

}  // namespace mcr
