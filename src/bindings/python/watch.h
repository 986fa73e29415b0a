// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace mcr::python {

/// What mcr_dl.watch reads and does: positions, activities, operations under way; how they are ended.
void add_watch(pybind11::module_& module);

}  // namespace mcr::python
