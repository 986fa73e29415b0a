// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <string>

#include "base/error.h"

namespace mcr::python {

/// Sets the Python exception of every ErrorCode: a dict from the code's name to a class. Called once, at import.
void set_exceptions(PyObject* by_name);

/// Sets the function that completes error texts of calls that other ranks take part in. It gets the text, the group's
/// label, the call's number, whether the call is a message and whether it timed out, and returns the text to show. It
/// is never freed.
void set_explainer(PyObject* function);

/// Turns the C++ exception in flight into a Python exception. Call inside a catch block, holding the GIL.
void set_error() noexcept;

/// The class and text of a Python exception: "ValueError: bad batch". Needs the GIL; leaves no Python error set.
std::string exception_text(PyObject* exception);

/// Takes the Python exception that is set and returns it as an Error. set_error() raises that exception again, on any
/// thread, with a note that says `where` it was raised. Needs the GIL.
Error take_error(const std::string& where);

/// Ctrl-C in Python code must not end as another error alone, or as none: if the exception, or class of one, is a
/// KeyboardInterrupt, the main thread gets it once more, when it next looks for signals or runs Python code. Needs the
/// GIL.
void keep_interrupt(PyObject* exception);

/// Reports the C++ exception in flight, which no call can raise, through sys.unraisablehook. Call inside a catch block,
/// with or without the GIL.
void report_unraisable(const char* where) noexcept;

/// Thrown when the Python error indicator is already set.
struct ErrorAlreadySet {};

}  // namespace mcr::python
