// SPDX-License-Identifier: Apache-2.0
// Calls of backends that enqueue on a device's streams. Here the host never waits for the device, except for a blocking
// barrier.
#pragma once

#include <memory>
#include <vector>

#include "device/event_pool.h"
#include "engine/pass.h"

namespace mcr {

/// A request that is complete once the device has passed the point.
std::unique_ptr<Request> passed(std::shared_ptr<StreamPoint> point);

/// The outcome of enqueuing an operation.
struct Enqueued {
  Requests requests;
  std::shared_ptr<StreamPoint> point;
};

/// Enqueues on the caller's current stream, without an event: the caller's next work comes after it. `passage` has its
/// slot. Throws InvalidArgument inside this thread's batch once that has calls: the library would start it with these.
void run_on_stream(Passage& passage);

/// Enqueues on one of the backend's own lanes, after the work already on the caller's current stream.
Enqueued start_on_stream(Passage& passage);

/// During the lifetime of this object, until end(), this thread's asynchronous calls on streams are collected and start
/// together: sends and receives among them do not wait for each other. Not nested.
class Batch {
 public:
  Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch();
  /// Starts the calls. Throws the library's error. Afterwards the Works of the batch may be waited for.
  void end();

  class Member;  // one communicator's calls in the batch
  Member& member(const Passage& passage);
  bool empty() const { return members_.empty(); }

  static Batch* current();

 private:
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace mcr
