// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "bindings/python/tensors.h"
#include "runtime/work.h"

namespace mcr::python {

/// The tensors that a Work keeps for the caller: all tensors of the call, and which of them hold its result. It also
/// keeps the memory that they have now, as the program may give a tensor other memory (`x.data = y`).
class KeptTensors {
 public:
  /// The tensors of a call: those that hold its result, and the others. `out`: the one of `results` that `tensors` has
  /// too; may be null.
  static std::shared_ptr<KeptTensors> of(TensorList&& results, const Tensors& tensors, const at::Tensor* out);
  /// The first `results` tensors of `all` hold the result.
  KeptTensors(TensorList all, std::size_t results);
  KeptTensors(const KeptTensors&) = delete;
  KeptTensors& operator=(const KeptTensors&) = delete;
  ~KeptTensors();
  /// The result tensors that have not been released.
  std::vector<at::Tensor> results() const;
  /// Releases all tensors and their memory.
  void release();
  /// The result tensors of a Work; empty if it keeps none.
  static std::vector<at::Tensor> results_of(const Work& work) {
    const auto* kept = static_cast<const KeptTensors*>(work.extras().kept.get());
    return kept == nullptr ? std::vector<at::Tensor>{} : kept->results();
  }
  /// For Extras::release.
  static void release_of(void* kept) { static_cast<KeptTensors*>(kept)->release(); }

 private:
  using Storages = c10::SmallVector<c10::Storage, 2>;

  mutable std::mutex mutex_;
  TensorList all_;
  Storages memory_;
  std::size_t results_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> left_;
};

}  // namespace mcr::python
