// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "backends/nccl/lanes.h"

namespace mcr::nccl {

/// One thread that polls all live communicators. Starts with the first of them. Thread-safe.
class Watchdog {
 public:
  void watch(const std::shared_ptr<Lanes>& lanes);
  /// Ends the thread and joins it.
  void stop();

 private:
  void run(const std::stop_token& stopping);
  std::vector<std::shared_ptr<Lanes>> living();

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::vector<std::weak_ptr<Lanes>> watched_;
  std::jthread thread_;
};

}  // namespace mcr::nccl
