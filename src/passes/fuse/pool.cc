// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse/pool.h"

#include <utility>

namespace mcr {

std::shared_ptr<std::byte[]> FusePool::lease(int64_t bytes) {
  if (bytes > state_->bytes) return std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
  std::unique_ptr<std::byte[]> buffer;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->idle.empty()) {
      buffer = std::move(state_->idle.back());
      state_->idle.pop_back();
    }
  }
  if (!buffer) buffer = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(state_->bytes));
  return {buffer.release(), [state = state_](std::byte* used) {
            std::unique_ptr<std::byte[]> owned(used);
            const std::lock_guard lock(state->mutex);
            state->idle.push_back(std::move(owned));
          }};
}

}  // namespace mcr
