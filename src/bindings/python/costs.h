// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace mcr::python {

/// Adds topologies, cost models, and schedules to simulate with them.
void add_costs(pybind11::module_& module);

}  // namespace mcr::python
