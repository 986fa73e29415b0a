// SPDX-License-Identifier: Apache-2.0
#include "passes/compress/feedback.h"

#include <utility>

#include "base/error.h"

namespace mcr {

std::shared_ptr<Residual> Feedback::find(const std::string& name, int64_t count, DType dtype, int64_t owned) {
  const std::lock_guard lock(mutex_);
  auto& residual = residuals_[name];
  if (residual == nullptr) {
    auto made = std::make_shared<Residual>();
    made->count = count;
    made->dtype = dtype;
    made->sent.resize(static_cast<std::size_t>(count));
    made->owned.resize(static_cast<std::size_t>(owned));
    residual = std::move(made);  // not before there was memory for it
  }
  if (residual->count == count && residual->dtype == dtype) return residual;
  const auto shown = [](int64_t elements, DType type) {
    return std::to_string(elements) + " elements of " + std::string(row(type).name);
  };
  throw Error(ErrorCode::InvalidArgument, "codec: feedback '" + name + "': expected " +
                                              shown(residual->count, residual->dtype) + " as in the first call, got " +
                                              shown(count, dtype));
}

void Feedback::reset() {
  const std::lock_guard lock(mutex_);
  residuals_.clear();
}

}  // namespace mcr
