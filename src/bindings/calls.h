// SPDX-License-Identifier: Apache-2.0
// The public operations as Python callables.
#pragma once

#include <ATen/ATen.h>
#include <Python.h>

#include <memory>
#include <vector>

#include "dispatch.h"

namespace mcr::python {

/// What a Work keeps for the caller: all tensors of the call, and those that hold its result.
struct KeptTensors {
  std::vector<at::Tensor> all, results;
};

/// Adds one callable per signature to the module.
void add_operations(PyObject* module);

/// The default group; null before init and after finalize. Set holding the GIL.
void set_world(std::shared_ptr<Group> group);
const std::shared_ptr<Group>& world();

/// While set, synchronous calls of this thread are started instead and their works are appended to the list (borrowed).
void set_coalescing(PyObject* list);

/// Runs Python's signal handlers from a thread that waits without the GIL; throws ErrorAlreadySet on Ctrl-C.
void check_signals();

/// Implemented beside the pybind11 classes (module.cc).
Group* group_of(PyObject* object);  // null if it is no group
PyObject* wrap(std::shared_ptr<Work> work);

}  // namespace mcr::python
