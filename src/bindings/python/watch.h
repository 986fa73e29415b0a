// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace mcr::python {

/// Adds what mcr_dl.watch reads and does: positions, activities, running operations, and ways to end them.
void add_watch(pybind11::module_& module);

}  // namespace mcr::python
