// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/watchdog.h"

#include <chrono>
#include <utility>

namespace mcr::nccl {

namespace {

constexpr std::chrono::milliseconds kPeriod{100};

}  // namespace

void Watchdog::watch(const std::shared_ptr<Lanes>& lanes) {
  const std::lock_guard lock(mutex_);
  watched_.push_back(lanes);
  if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& stopping) { run(stopping); });
}

void Watchdog::stop() {
  std::jthread ending;
  {
    const std::lock_guard lock(mutex_);
    ending = std::move(thread_);
  }
  // Destroying it stops and joins the thread.
}

std::vector<std::shared_ptr<Lanes>> Watchdog::living() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Lanes>> result;
  std::erase_if(watched_, [&](const std::weak_ptr<Lanes>& weak) {
    if (auto lanes = weak.lock()) {
      result.push_back(std::move(lanes));
      return false;
    }
    return true;
  });
  return result;
}

void Watchdog::run(const std::stop_token& stopping) {
  DeviceRuntime::enter_background_everywhere();
  while (!stopping.stop_requested()) {
    for (const auto& lanes : living()) lanes->poll();
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, stopping, kPeriod, [] { return false; });
  }
}

}  // namespace mcr::nccl
