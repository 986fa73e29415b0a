// SPDX-License-Identifier: Apache-2.0
// Python functions that threads of the core call.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>

#include "bindings/python/errors.h"
#include "bindings/python/gil.h"

namespace mcr::python {

/// Shares a function, so that copying a std::function that holds it needs no GIL. Releasing it takes the GIL.
inline std::shared_ptr<pybind11::object> shared(pybind11::object function) {
  return {new pybind11::object(std::move(function)), [](pybind11::object* owned) {
            const std::unique_ptr<pybind11::object> owner(owned);
            let_go(owned->release().ptr());
          }};
}

/// As take_error(), for the exception of a function that pybind11 has called. Needs the GIL.
inline Error taken(pybind11::error_already_set& error, const std::string& where) {
  error.restore();
  return take_error(where);
}

}  // namespace mcr::python
