// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/core/Stream.h>

#include "device/device.h"

namespace mcr::python {

/// Gives the core torch's streams, events and memory of CUDA devices, if this torch has any. Called at import.
void add_devices();

c10::Device torch_device(Device device);

/// torch's object for a CUDA device's stream.
c10::Stream torch_stream(const Stream& stream);

/// A stream that other code has made, from its cudaStream_t.
Stream external_stream(Device device, uintptr_t handle);

}  // namespace mcr::python
