// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/kept_tensors.h"

#include "base/immortal.h"
#include "bindings/python/gil.h"

namespace mcr::python {

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
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < results_; ++i) left_.emplace_back(all_[i].getIntrusivePtr());
    results_ = 0;
    given_up.swap(all_);
  }
  // Without the lock, as freeing may run the allocator's code.
  const WhilePythonLives lives;
  if (!lives) static_cast<void>(immortal<TensorList>(std::move(given_up)));
  given_up.clear();
}

}  // namespace mcr::python
