// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace mcr::python {

/// Adds the planner of a step's calls.
void add_plans(pybind11::module_& module);

}  // namespace mcr::python
