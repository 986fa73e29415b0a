// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include "bindings/python/errors.h"
#include "bindings/python/gil.h"

namespace mcr::python {

/// Runs `body` without the GIL; the core's errors become Python exceptions.
template <class Body>
decltype(auto) unlocked(Body body) {
  try {
    const Unlocked guard;
    return body();
  } catch (...) {
    set_error();
    throw pybind11::error_already_set();
  }
}

}  // namespace mcr::python
