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

/// The tensors that a Work keeps for the caller: all tensors of the call, and which of them hold its result.
class KeptTensors {
 public:
  /// The first `results` tensors of `all` hold the result.
  KeptTensors(TensorList all, std::size_t results) : all_(std::move(all)), results_(results) {}
  KeptTensors(const KeptTensors&) = delete;
  KeptTensors& operator=(const KeptTensors&) = delete;
  ~KeptTensors();
  /// The result tensors that have not been released.
  std::vector<at::Tensor> results() const;
  /// Releases all tensors.
  void release();
  /// The result tensors of a Work; empty if it keeps none.
  static std::vector<at::Tensor> results_of(const Work& work) {
    const auto* kept = static_cast<const KeptTensors*>(work.plan().kept.get());
    return kept == nullptr ? std::vector<at::Tensor>{} : kept->results();
  }
  /// For Plan::release.
  static void release_of(void* kept) { static_cast<KeptTensors*>(kept)->release(); }

 private:
  mutable std::mutex mutex_;
  TensorList all_;
  std::size_t results_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> left_;
};

/// Adds one callable per signature to the module.
void add_operations(PyObject* module);

/// The default group; null before init and after finalize. Set while holding the GIL.
void set_world(std::shared_ptr<Group> group);
const std::shared_ptr<Group>& world();

/// While set, this thread's all_reduces, all_gathers and reduce_scatters of one tensor in the group are started instead
/// of done, and the Works of these and of its asynchronous calls are appended to the list.
void set_coalescing(PyObject* list, const Group* group);

/// Runs Python's signal handlers from a thread that waits without the GIL; throws ErrorAlreadySet on Ctrl-C.
void check_signals();

/// As in arguments.h; nothing for a Python object that is not a ReduceOp.
std::pair<at::Tensor, double> premul_factor(PyObject* reduction);

}  // namespace mcr::python
