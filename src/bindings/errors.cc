// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

#include <array>
#include <exception>

#include "error.h"

namespace mcr::python {

namespace {

struct Row {
  ErrorCode code;
  const char* name;  // of the class in mcr_dl._errors
  PyObject* exception;
};

std::array table = {
    Row{ErrorCode::InvalidArgument, "InvalidArgumentError", nullptr},
    Row{ErrorCode::InvalidType, "InvalidTypeError", nullptr},
    Row{ErrorCode::Unsupported, "UnsupportedError", nullptr},
    Row{ErrorCode::NotInitialized, "NotInitializedError", nullptr},
    Row{ErrorCode::Unavailable, "BackendUnavailableError", nullptr},
    Row{ErrorCode::Backend, "BackendError", nullptr},
    Row{ErrorCode::Timeout, "CollectiveTimeoutError", nullptr},
};

PyObject* exception_of(ErrorCode code) {
  for (const auto& row : table) {
    if (row.code == code && row.exception != nullptr) return row.exception;
  }
  return PyExc_RuntimeError;
}

}  // namespace

void set_exceptions(PyObject* classes) {
  for (auto& row : table) row.exception = Py_XNewRef(PyDict_GetItemString(classes, row.name));
}

void set_error() noexcept {
  try {
    throw;
  } catch (const ErrorAlreadySet&) {
  } catch (const Error& error) {
    PyErr_SetString(exception_of(error.code()), error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "unknown C++ exception");
  }
}

}  // namespace mcr::python
