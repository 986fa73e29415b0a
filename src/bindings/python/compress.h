// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace mcr::python {

/// Adds the compression pass, the codecs, and codecs that are Python objects. Call after add_passes().
void add_compress(pybind11::module_& module);

}  // namespace mcr::python
