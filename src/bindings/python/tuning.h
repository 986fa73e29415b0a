// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace mcr::python {

/// What Python's side of tuning needs: giving a group its cost curves and rules, asking it for its choice, comparing
/// curves.
void add_tuning(pybind11::module_& module);

}  // namespace mcr::python
