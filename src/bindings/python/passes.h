// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace mcr::python {

/// Adds a group's chain of passes for Python: setting it, and passes that are Python objects.
void add_passes(pybind11::module_& module);

}  // namespace mcr::python
