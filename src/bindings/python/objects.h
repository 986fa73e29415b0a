// SPDX-License-Identifier: Apache-2.0
// Python objects without pybind11, for the path of a call.
#pragma once

#include <Python.h>

#include <memory>
#include <string>
#include <string_view>

namespace mcr::python {

struct GiveUp {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
/// Owns a reference, or is null.
using Owner = std::unique_ptr<PyObject, GiveUp>;

/// Returns the text of a str as UTF-8, escaping lone surrogates, which UTF-8 cannot represent. Returns `otherwise` for
/// null and for other objects. Leaves no Python error set.
std::string utf8_of(PyObject* text, std::string_view otherwise);

/// A new str from text that should be UTF-8: texts of libraries need not be. Null with a Python error if memory runs
/// out.
PyObject* str_of(std::string_view text);

/// repr() for error texts, or the type's name if repr() fails.
std::string represented(PyObject* value);

/// A tuple of the elements of any iterable, which Python code cannot change while the call runs. Null if the object is
/// not iterable; leaves no Python error set.
Owner entries_of(PyObject* iterable);

}  // namespace mcr::python
