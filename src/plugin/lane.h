// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"

namespace mcr {

/// A started operation of a host backend. Not thread-safe, except that block(), expedite() and abandon() may run
/// concurrently with poll(); Work serialises the rest.
class Request {
 public:
  virtual ~Request() = default;
  /// Makes one step; never waits. True once complete; throws Error if the operation failed.
  virtual bool poll() = 0;
  /// Sleeps until the operation may be complete or `limit` has passed. False: this library cannot sleep.
  virtual bool block(std::chrono::nanoseconds /*limit*/) { return false; }
  /// A thread waits for this operation: stop batching and issue it now. Cheap; may be called more than once.
  virtual void expedite() {}
  /// Names the operation that must be issued before this one, for error messages; empty once this one is issued.
  virtual std::string behind() const { return {}; }
  /// poll() has thrown, and an operation that this request stands for is still running. Then poll() is called on: it
  /// throws no more, and is true once all have ended. Libraries' requests never do that.
  virtual bool lingers() const { return false; }
  /// The group rank that a completed receive got its message from; -1 for other operations.
  virtual int source() const { return -1; }
  /// The call has ended with an error, while this operation may still run: other calls do not wait for it. Makes no
  /// progress; may be called more than once.
  virtual void abandon() {}
};

/// Called inside Request::poll() if data has moved, so that more may move soon: a progress thread then polls again
/// within microseconds. Changes nothing in other threads.
void poll_again_soon() noexcept;

/// Marks that this thread polls a request under a lock of its caller, for the lifetime of the object. Request::poll()
/// then does no long work for other calls: the caller goes on to poll without its lock. Not while a user's function
/// runs, which may make calls of its own.
class BriefPolls {
 public:
  explicit BriefPolls(bool brief = true) noexcept : brief_(brief) {
    if (brief_) set(true);
  }
  BriefPolls(const BriefPolls&) = delete;
  BriefPolls& operator=(const BriefPolls&) = delete;
  ~BriefPolls() {
    if (brief_) set(false);
  }
  static bool here() noexcept;

 private:
  static void set(bool brief) noexcept;

  const bool brief_;
};

using Requests = std::vector<std::unique_ptr<Request>>;

/// Sleeps until all may be complete or `limit` has passed, on one after the other: the end of the last is not the end
/// of all. False: a library cannot sleep, or there are none.
bool block_on(const Requests& requests, std::chrono::nanoseconds limit);

/// The target of issue(). A blocking lane is the caller's own thread: the operation is complete when issue() returns,
/// or the backend passes its Request to track() and the caller waits for it, so that it can be interrupted. On a stream
/// lane the operation is enqueued on a device's stream, and the provider of the stream tracks its completion. On any
/// other lane the backend starts the operation and passes its Request to track().
class Lane {
 public:
  explicit Lane(bool blocking) : blocking_(blocking) {}
  /// `index`: which of Communicator::lanes() it is. Calls on one index are issued in one order on all ranks.
  explicit Lane(const Stream& stream, int index = 0) : blocking_(false), stream_(stream), index_(index) {}
  bool blocking() const { return blocking_; }
  const Stream& stream() const { return *stream_; }  // only on a lane made from a stream
  int index() const { return index_; }
  void track(std::unique_ptr<Request> request) { requests_.push_back(std::move(request)); }
  /// On a blocking lane: the group rank that a receive got its message from.
  void set_source(int rank) { source_ = rank; }
  int source() const { return source_; }
  bool pending() const { return !requests_.empty(); }
  Requests take() { return std::exchange(requests_, {}); }

 private:
  bool blocking_;
  std::optional<Stream> stream_;
  int index_ = 0;
  int source_ = -1;
  Requests requests_;
};

}  // namespace mcr
