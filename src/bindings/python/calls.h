// SPDX-License-Identifier: Apache-2.0
// The public operations as Python callables.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "bindings/python/tensors.h"
#include "engine/dispatch.h"

namespace mcr::python {

/// What a Work keeps for the caller: all tensors of the call, and those that hold its result.
class KeptTensors {
 public:
  /// The first `results` of `all` hold the result.
  KeptTensors(TensorList all, std::size_t results) : all_(std::move(all)), results_(results) {}
  /// Those that hold the result and are still there.
  std::vector<at::Tensor> results() const;
  /// From here on it keeps nothing alive.
  void release();

 private:
  mutable std::mutex mutex_;
  TensorList all_;
  std::size_t results_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> left_;
};

/// Adds one callable per signature to the module.
void add_operations(PyObject* module);

/// The default group; null before init and after finalize. Set holding the GIL.
void set_world(std::shared_ptr<Group> group);
const std::shared_ptr<Group>& world();

/// While set, synchronous calls of this thread are started instead and their works are appended to the list (borrowed).
void set_coalescing(PyObject* list);

/// Asynchronous calls of this thread start together at the end of the batch, where their libraries need that.
void begin_batch();
void end_batch();

/// Runs Python's signal handlers from a thread that waits without the GIL; throws ErrorAlreadySet on Ctrl-C.
void check_signals();

/// arguments.h; for a Python object that is no ReduceOp: none.
std::pair<at::Tensor, double> premul_factor(PyObject* reduction);

}  // namespace mcr::python
