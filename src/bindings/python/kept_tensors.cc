// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/kept_tensors.h"

#include "base/immortal.h"
#include "bindings/python/gil.h"

namespace mcr::python {

KeptTensors::KeptTensors(TensorList all, std::size_t results) : all_(std::move(all)), results_(results) {
  for (const auto& tensor : all_) {
    if (tensor.has_storage()) memory_.push_back(tensor.unsafeGetTensorImpl()->unsafe_storage());
  }
}

std::shared_ptr<KeptTensors> KeptTensors::of(TensorList&& results, const Tensors& tensors, const at::Tensor* out) {
  const auto count = results.size();
  tensors.append_all(results, out);
  return std::make_shared<KeptTensors>(std::move(results), count);
}

std::vector<at::Tensor> KeptTensors::results() const {
  const std::lock_guard lock(mutex_);
  std::vector<at::Tensor> found(all_.begin(), all_.begin() + results_);
  for (const auto& one : left_) {
    if (auto tensor = one.lock()) found.emplace_back(std::move(tensor));
  }
  return found;
}

KeptTensors::~KeptTensors() { release(); }

void KeptTensors::release() {
  TensorList given_up;
  Storages memory;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < results_; ++i) left_.emplace_back(all_[i].getIntrusivePtr());
    results_ = 0;
    given_up.swap(all_);
    memory.swap(memory_);
  }
  // Without the lock, as freeing may run the allocator's code.
  const WhilePythonLives lives;
  if (!lives) {
    static_cast<void>(immortal<TensorList>(std::move(given_up)));
    static_cast<void>(immortal<Storages>(std::move(memory)));
  }
  given_up.clear();
  memory.clear();
}

}  // namespace mcr::python
