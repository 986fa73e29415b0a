// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace mcr {

/// Marks the point at which an operation is complete. For operations of a device, see StreamPoint. Any thread
/// may test it; exactly one signals it, once.
class Fence {
 public:
  bool ready() const noexcept { return ready_.load(std::memory_order_acquire); }
  void signal() noexcept { ready_.store(true, std::memory_order_release); }

 private:
  std::atomic<bool> ready_{false};
};

}  // namespace mcr
