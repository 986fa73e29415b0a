// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

#include <array>
#include <exception>

#include "error.h"
#include "stop.h"

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
    Row{ErrorCode::Desync, "DesyncError", nullptr},
};

PyObject* explainer = nullptr;  // never given up: it is a function of a module

PyObject* exception_of(ErrorCode code) {
  for (const auto& row : table) {
    if (row.code == code && row.exception != nullptr) return row.exception;
  }
  return PyExc_RuntimeError;
}

// The text of an error that other ranks have to do with is completed by what is known of them.
void explain(const Error& error, const Subject& subject) {
  PyObject* text = PyObject_CallFunction(explainer, "ssLi", error.what(), subject.label.c_str(),
                                         static_cast<long long>(subject.seq), subject.message ? 1 : 0);
  if (text == nullptr)
    return PyErr_SetString(exception_of(error.code()), error.what());  // in the place of its own error
  PyErr_SetObject(exception_of(error.code()), text);
  Py_DECREF(text);
}

}  // namespace

void set_explainer(PyObject* function) {
  Py_XINCREF(function);
  explainer = function;
}

void set_exceptions(PyObject* classes) {
  for (auto& row : table) row.exception = Py_XNewRef(PyDict_GetItemString(classes, row.name));
}

void set_error() noexcept {
  try {
    throw;
  } catch (const ErrorAlreadySet&) {
  } catch (const Error& error) {
    const auto* subject = error.subject();
    // What has failed since then has failed for that reason.
    if (subject != nullptr && Stop::requested()) {
      return PyErr_SetString(exception_of(ErrorCode::Desync), Stop::text().c_str());
    }
    if (subject == nullptr || explainer == nullptr) return PyErr_SetString(exception_of(error.code()), error.what());
    explain(error, *subject);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "unknown C++ exception");
  }
}

}  // namespace mcr::python
