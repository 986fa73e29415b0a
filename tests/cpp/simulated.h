// SPDX-License-Identifier: Apache-2.0
// A device that is a thread for each stream, in place of CUDA's: work enqueued there happens later, in the order of the
// stream, so that a missing event shows as a wrong value. Its memory is the host's.
#pragma once

#include <functional>

#include "device/device.h"

namespace simulated {

/// Becomes the runtime of DeviceType::CUDA, once.
void start();

/// Gives a stream something to do.
void enqueue(const mcr::Stream& stream, std::function<void()> work);
/// The calling thread's current stream.
mcr::Stream current();
/// Waits until the stream has done all that it was given.
void finish(const mcr::Stream& stream);

/// Events recorded so far, by all threads.
int events();
/// Pieces of pinned memory handed out so far.
int pinned();
/// Streams of high priority made so far.
int high_streams();
/// Whether current streams are being recorded into a graph.
void set_capturing(bool capturing);

}  // namespace simulated
