// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/error.h"

#include <exception>
#include <utility>

#include "bindings/python/errors.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

void set_error_of(const Error& error) {
  try {
    throw Error(error);
  } catch (...) {
    set_error();
  }
}

// torch raises `type(text)`, which classes of users may not support.
PyObject* raisable(const py::object& type, const std::string& text) {
  try {
    type(text);
    return type.ptr();
  } catch (const py::error_already_set&) {
    return PyExc_RuntimeError;
  }
}

}  // namespace

// The GIL may be released meanwhile, so that another thread may have done the same.
void TorchError::explain() const {
  set_error_of(error_);
  const py::error_already_set error;
  auto text = py::str(error.value()).cast<std::string>();
  auto* const type = raisable(error.type(), text);
  if (!raised_) raised_ = Raised{Py_NewRef(type), std::move(text)};
}

const char* TorchError::what() const noexcept {
  if (PyGILState_Check() == 0) return PyTorchError::what();
  try {
    if (!raised_) explain();
    return raised_->text.c_str();
  } catch (...) {
    return PyTorchError::what();
  }
}

PyObject* TorchError::python_type() {
  what();
  return raised_ ? raised_->type : PyExc_RuntimeError;
}

void TorchError::register_translator() {
  py::register_exception_translator([](std::exception_ptr failure) {
    try {
      std::rethrow_exception(std::move(failure));
    } catch (const TorchError& error) {
      set_error_of(error.error());
    }
  });
}

}  // namespace mcr::python
