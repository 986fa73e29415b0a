// SPDX-License-Identifier: Apache-2.0
// Calls of backends that enqueue on a device's streams. Here the host never waits for the device, except for a blocking
// barrier.
#pragma once

#include <memory>

#include "device/event_pool.h"
#include "engine/pass.h"

namespace mcr {

/// The outcome of enqueuing an operation.
struct Enqueued {
  std::unique_ptr<Request> request;  // null in a graph that is being captured
  std::shared_ptr<StreamPoint> point;
};

/// Enqueues on the caller's current stream, without an event: the caller's next work comes after it. `passage` has its
/// candidate. Throws InvalidArgument inside this thread's batch once that has calls: the library would start it with
/// these.
void run_on_stream(Passage& passage);

/// Enqueues on one of the backend's own lanes, after the work already on the caller's current stream.
Enqueued start_on_stream(Passage& passage);

/// From here to end_batch(), this thread's asynchronous calls on streams are collected and start together: sends and
/// receives among them do not wait for each other. Not nested. The end of the thread ends its batch.
void begin_batch();
/// Starts the calls of this thread's batch, if there is one. Throws the library's error. Afterwards the Works of the
/// batch may be waited for.
void end_batch();

}  // namespace mcr
