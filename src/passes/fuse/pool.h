// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace mcr {

/// Reusable memory for fused calls. A lease returns when its last owner releases it, never earlier; buffers have one
/// size and are never resized. Thread-safe; leases may outlive the pool.
class FusePool {
 public:
  explicit FusePool(int64_t bytes) : state_(std::make_shared<State>()) { state_->bytes = bytes; }
  /// A buffer of at least `bytes`. A request above the pool's buffer size is allocated for this use only.
  std::shared_ptr<std::byte[]> lease(int64_t bytes);

 private:
  struct State {
    int64_t bytes = 0;
    std::mutex mutex;
    std::vector<std::unique_ptr<std::byte[]>> idle;  // guarded by mutex
  };
  std::shared_ptr<State> state_;
};

}  // namespace mcr
