// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace mcr::python {

/// Adds the plans of collectives on networks of several dimensions.
void add_themis(pybind11::module_& module);

}  // namespace mcr::python
