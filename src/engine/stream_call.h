// SPDX-License-Identifier: Apache-2.0
// Calls of backends that enqueue on a device's streams. The host never waits for the device here, but for a blocking
// barrier.
#pragma once

#include <memory>
#include <vector>

#include "device/event_pool.h"
#include "engine/pass.h"

namespace mcr {

/// Complete once the device has passed the point.
std::unique_ptr<Request> passed(std::shared_ptr<StreamPoint> point);

/// What is left of an operation that was enqueued.
struct Enqueued {
  std::vector<std::unique_ptr<Request>> requests;
  std::shared_ptr<StreamPoint> point;
};

/// On the caller's current stream, without an event: what the caller enqueues next comes behind it. `passage` has its
/// slot. A batch of this thread does not see blocking calls.
void run_on_stream(Passage& passage);

/// On a lane of the backend's own, behind what the caller's current stream has been given so far.
Enqueued start_on_stream(Passage& passage);

/// Between its making and end(), the asynchronous calls of this thread that go to streams start together: sends and
/// receives in it do not wait for each other. Not nested.
class Batch {
 public:
  Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch();
  /// Starts them. Throws the library's error. Works of the batch may be waited for from now on.
  void end();

  class Member;  // what one communicator has been given
  Member& member(const Passage& passage);

  static Batch* current();

 private:
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace mcr
