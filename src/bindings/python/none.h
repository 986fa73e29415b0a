// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace mcr::python {

/// The value as a Python object; None if it is not there.
template <class Value>
pybind11::object or_none(bool there, const Value& value) {
  if (!there) return pybind11::none();
  return pybind11::cast(value);
}

inline pybind11::object text_or_none(const std::string* text) {
  if (text == nullptr) return pybind11::none();
  return pybind11::str(*text);
}

}  // namespace mcr::python
