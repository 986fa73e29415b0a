// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace mcr::python {

inline pybind11::object text_or_none(const std::string* text) {
  return text == nullptr ? pybind11::object(pybind11::none()) : pybind11::str(*text);
}

}  // namespace mcr::python
