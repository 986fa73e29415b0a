// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

namespace mcr::python {

/// Names the Python exception of every ErrorCode: a dict from the code's name to a class. Called once, at import.
void set_exceptions(PyObject* classes);

/// What completes the texts of errors that other ranks have to do with: called with the text, the group's label, the
/// call's number and whether it is a message, it returns the text to show. Kept for good.
void set_explainer(PyObject* function);

/// Turns the C++ exception in flight into a Python one. Call inside a catch block, holding the GIL.
void set_error() noexcept;

/// Thrown where the Python error indicator is already set.
struct ErrorAlreadySet {};

}  // namespace mcr::python
