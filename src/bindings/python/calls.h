// SPDX-License-Identifier: Apache-2.0
// The public operations as Python callables.
#pragma once

#include <Python.h>

#include <memory>

#include "group/group.h"

namespace mcr::python {

/// Adds one callable per signature to the module.
void add_operations(PyObject* module);

/// The default group; null before init and after finalize. Set while holding the GIL.
void set_world(std::shared_ptr<Group> group);
const std::shared_ptr<Group>& world();

/// While set, this thread's all_reduces, all_gathers and reduce_scatters of one tensor in the group are started instead
/// of done, and the Works of these and of its asynchronous calls are appended to the list.
void set_coalescing(PyObject* list, const Group* group);

}  // namespace mcr::python
