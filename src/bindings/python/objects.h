// SPDX-License-Identifier: Apache-2.0
// Python objects where pybind11 is not used: on the path of a call.
#pragma once

#include <Python.h>

#include <memory>
#include <string>
#include <string_view>

namespace mcr::python {

struct GiveUp {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
/// Owns a reference; may be null.
using Owner = std::unique_ptr<PyObject, GiveUp>;

/// Returns the text of a str as UTF-8, with lone surrogates, which UTF-8 does not have, escaped. Returns `otherwise`
/// for null and for other objects. Leaves no Python error set.
std::string utf8_of(PyObject* text, std::string_view otherwise);

/// A new str of text that should be UTF-8: messages of libraries need not be. Null with a Python error if there is no
/// memory.
PyObject* str_of(std::string_view text);

/// repr() for messages, or the name of the type where repr() fails.
std::string represented(PyObject* value);

/// A tuple of the elements of any iterable, which Python code that runs meanwhile cannot change. Null for what is not
/// iterable; leaves no Python error set.
Owner entries_of(PyObject* iterable);

}  // namespace mcr::python
