// SPDX-License-Identifier: Apache-2.0
// torch's process groups as handles of the core's groups.
#pragma once

#include <Python.h>

#include <memory>
#include <string>

#include "group/group.h"

namespace mcr::python {

/// The group behind a torch process group whose backend is "mcr" (in torch's debugging wrapper or not), or behind an
/// object of the Group class. Null for every other object. All functions here need the GIL.
Group* group_of(PyObject* object);

/// How errors describe an object that is not a group.
std::string described(PyObject* object);

/// A new reference to a process group that stands for the group, if torch has one; else to the group itself. Parts from
/// torch's ProcessGroup.split_group, which torch does not register, are found after their first use in mcr_dl only.
PyObject* handle_of(const std::shared_ptr<Group>& group);

/// Remembers the process group as the group's handle, so that a lookup is cheap.
void remember_handle(PyObject* process_group, std::shared_ptr<Group> group);

/// Called when the group is closed.
void forget_handles(const Group& group);

}  // namespace mcr::python
