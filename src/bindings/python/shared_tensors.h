// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace mcr::python {

/// Adds the memory of tensors that other processes can map (base/shared_heap.h).
void add_shared_tensors(pybind11::module_& module);

}  // namespace mcr::python
