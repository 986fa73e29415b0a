// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace mcr::python {

/// Adds the trials of candidates (choose/trials.h): turning them on, their reports, which a thread in Python makes the
/// ranks agree on, and their results.
void add_trials(pybind11::module_& module);

}  // namespace mcr::python
