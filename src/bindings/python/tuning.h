// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace mcr::python {

/// Adds what the Python part of tuning needs: setting a group's cost curves and rules, querying its choices, comparing
/// curves.
void add_tuning(pybind11::module_& module);

}  // namespace mcr::python
