// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <optional>
#include <string>

#include "base/error.h"
#include "bindings/python/errors.h"
#include "bindings/python/gil.h"

namespace mcr::python {

/// An Error on its way through C++ code of torch, as autograd's and DistributedDataParallel's, which turns exceptions
/// that it does not know into a RuntimeError. This one becomes the exception that the Error is elsewhere.
class TorchError final : public torch::PyTorchError {
 public:
  explicit TorchError(const Error& error) : PyTorchError(error.what()), error_(error) {}

  const Error& error() const { return error_; }
  /// With the GIL, the text has what is known about the other ranks.
  const char* what() const noexcept override;
  /// The class of the exception. Needs the GIL.
  PyObject* python_type() override;

  /// Has Python code that torch calls directly get the Error itself.
  static void register_translator();

 private:
  struct Raised {
    PyObject* type = nullptr;  // never released: a class
    std::string text;
  };
  void explain() const;

  const Error error_;
  mutable std::optional<Raised> raised_;  // guarded by the GIL
};

/// Calls a function whose Errors go to torch, and Python's exceptions, such as KeyboardInterrupt of a wait: torch's C++
/// code lets only classes of std::exception through to Python.
template <typename Function>
decltype(auto) for_torch(const Function& function) {
  try {
    return function();
  } catch (const Error& error) {
    throw TorchError(error);
  } catch (const ErrorAlreadySet&) {
    const Locked locked;
    throw pybind11::error_already_set();
  }
}

}  // namespace mcr::python
