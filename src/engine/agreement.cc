// SPDX-License-Identifier: Apache-2.0
#include "engine/agreement.h"

#include <utility>

#include "engine/dispatch.h"

namespace mcr {

void Agreement::propose(int64_t value, Slot slot) {
  if (group_->size() == 1) {
    alone_ = value;
    return;
  }
  Plan plan;
  auto* memory = static_cast<int64_t*>(plan.allocate({}, sizeof(int64_t)));
  *memory = value;
  Call call;
  call.op = Op::all_reduce;
  call.dtype = DType::Long;
  call.red = RedOp::MIN;
  call.out = {memory, 1};
  answer_ = memory;
  round_ = start_around_passes(*group_, &slot, call, plan);
}

std::optional<int64_t> Agreement::poll() {
  if (alone_) return std::exchange(alone_, std::nullopt);
  if (round_ == nullptr || !round_->poll()) return std::nullopt;
  round_->rethrow();
  const int64_t agreed = *answer_;
  round_.reset();
  return agreed;
}

}  // namespace mcr
