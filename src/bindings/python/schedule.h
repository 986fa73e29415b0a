// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace mcr::python {

/// The classes with which Python code sets plans of iterations. Call after add_passes().
void add_schedule(pybind11::module_& module);

}  // namespace mcr::python
