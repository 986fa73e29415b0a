// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/profiler.h"

#include <ATen/record_function.h>

#include <memory>
#include <string>
#include <utility>

#include "base/immortal.h"
#include "observe/profile.h"

namespace mcr::python {

namespace {

class TorchProfiler : public Profiler {
 public:
  std::unique_ptr<Span> begin(Op op, const std::string& backend) override {
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (!callbacks) return nullptr;
    return std::make_unique<Shown>(*std::move(callbacks), "mcr_dl." + std::string(row(op).name) + "[" + backend + "]");
  }

 private:
  class Shown : public Span {
   public:
    Shown(at::StepCallbacks&& callbacks, std::string name) : function_(std::move(callbacks)) {
      function_.before(std::move(name));
    }

   private:
    at::RecordFunction function_;
  };
};

}  // namespace

void install_profiler() {
  // Never destroyed: calls may come until the very end.
  static auto& profiler = immortal<TorchProfiler>();
  Profiler::install(profiler);
}

}  // namespace mcr::python
