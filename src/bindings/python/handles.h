// SPDX-License-Identifier: Apache-2.0
// torch's process groups as the handles of our groups.
#pragma once

#include <Python.h>

#include <memory>
#include <string>

#include "group/group.h"

namespace mcr::python {

/// The group behind a torch process group whose backend is "mcr" (in torch's debugging wrapper or not), or behind an
/// object of the class of groups itself. Null for every other object. Needs the GIL, as all of these do.
Group* group_of(PyObject* object);

/// What an object is that is no group of ours, for errors.
std::string described(PyObject* object);

/// A new reference to the process group that has last been seen to stand for the group; else the group itself.
PyObject* handle_of(const std::shared_ptr<Group>& group);

/// Keeps the process group as the group's handle, so that looking it up is cheap.
void remember_handle(PyObject* process_group, std::shared_ptr<Group> group);

/// Called when the group is closed.
void forget_handles(const Group& group);

}  // namespace mcr::python
