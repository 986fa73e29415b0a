// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/completions.h"

#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "bindings/python/errors.h"

namespace mcr::python {

namespace {

// A thread that is idle this long ends; the first is kept.
constexpr std::chrono::seconds kPatience{2};

std::atomic<Completions*> made{nullptr};  // the instance, once there is one

}  // namespace

// Never destroyed: its threads end with the process.
Completions& Completions::instance() {
  static auto& completions = immortal<Completions>();
  return completions;
}

Completions::Completions() {
  try {
    std::thread(&Completions::serve, this).detach();
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::Backend, std::string("expected a thread for callbacks of operations, got none: ") +
                                        error.what() + "; raise the limit of processes (ulimit -u)");
  }
  idle_ = 1;  // (the thread cannot end so soon)
  made = this;
}

void Completions::run(std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  actions_.push_back(std::move(action));
  if (idle_ >= actions_.size()) return wake_.notify_one();
  try {
    std::thread(&Completions::serve, this).detach();
    ++idle_;
  } catch (const std::system_error&) {
    wake_.notify_one();  // if the system grants no more threads, the present ones run it later
  }
}

void Completions::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!wake_.wait_for(lock, kPatience, [this] { return !actions_.empty(); })) {
      if (idle_ == 1) continue;
      --idle_;
      return;
    }
    auto action = std::move(actions_.front());
    actions_.pop_front();
    --idle_;
    ++busy_;
    lock.unlock();
    try {
      action();
    } catch (const abi::__forced_unwind&) {
      for (;;) pause();  // Python, which ends, ends this thread: see take_gil()
    } catch (...) {
      report_unraisable("mcr_dl: callback of a future");
    }
    action = nullptr;  // the objects that it holds may need a lock of their own to end
    lock.lock();
    --busy_;
    ++idle_;
    if (busy_ == 0 && actions_.empty()) done_.notify_all();
  }
}

bool Completions::drain(std::chrono::milliseconds limit) {
  auto* const all = made.load();
  if (all == nullptr) return true;
  std::unique_lock lock(all->mutex_);
  return all->done_.wait_for(lock, limit, [all] { return all->busy_ == 0 && all->actions_.empty(); });
}

}  // namespace mcr::python
