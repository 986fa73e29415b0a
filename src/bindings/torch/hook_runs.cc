// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/hook_runs.h"

#include <algorithm>
#include <chrono>
#include <string_view>

#include "bindings/python/errors.h"
#include "bindings/python/gil.h"
#include "bindings/torch/error.h"

namespace mcr::python {

HookRuns::~HookRuns() {
  if (!failure_ || reported_) return;
  try {
    throw Error(*failure_);
  } catch (...) {
    report_unraisable("mcr: completion hook");
  }
}

void HookRuns::run(const std::string& call) noexcept {
  std::optional<Error> failure;
  try {
    const Locked locked;  // else torch's own one would be unwound when Python ends this thread: see take_gil()
    hook_();
  } catch (...) {
    const Error error = current_error();
    // The main thread gets Ctrl-C once more, of which torch's hooks keep the text alone.
    if (std::string_view(error.what()).starts_with("KeyboardInterrupt")) PyErr_SetInterrupt();
    failure = Error(ErrorCode::Backend, call + ": the completion hook has raised " + error.what());
  }
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(failure);
  --left_;
  done_.notify_all();
}

bool HookRuns::over() const {
  const std::lock_guard lock(mutex_);
  return left_ == 0;
}

bool HookRuns::wait(Interrupt interrupt, std::optional<Deadline> deadline) const {
  std::unique_lock lock(mutex_);
  while (!done_.wait_for(lock, kLookInterval, [this] { return left_ == 0; })) {
    if (deadline && std::chrono::steady_clock::now() >= *deadline) return false;
    if (interrupt == nullptr) continue;
    lock.unlock();
    interrupt();
    lock.lock();
  }
  return true;
}

bool HookRuns::failed() const {
  const std::lock_guard lock(mutex_);
  return failure_.has_value();
}

void HookRuns::rethrow() const {
  const std::lock_guard lock(mutex_);
  if (!failure_) return;
  reported_ = true;
  throw Error(*failure_);
}

void run_hook(std::function<void()> hook, const std::string& call) {
  HookRuns runs(std::move(hook), 1);
  runs.run(call);
  for_torch([&] { runs.rethrow(); });
}

std::shared_ptr<HookRuns> PendingHookRuns::begin(std::function<void()> hook, std::size_t runs) {
  if (hook == nullptr) return nullptr;
  auto made = std::make_shared<HookRuns>(std::move(hook), runs);
  const std::lock_guard lock(mutex_);
  std::erase_if(all_, [](const auto& each) {
    const auto pending = each.lock();
    return pending == nullptr || pending->over();
  });
  all_.push_back(made);
  return made;
}

bool PendingHookRuns::wait(Interrupt interrupt, HookRuns::Deadline deadline) {
  std::vector<std::weak_ptr<HookRuns>> all;
  {
    const std::lock_guard lock(mutex_);
    all = all_;
  }
  return std::ranges::all_of(all, [&](const auto& each) {
    const auto pending = each.lock();
    return pending == nullptr || pending->wait(interrupt, deadline);
  });
}

}  // namespace mcr::python
