// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/completions.h"

#include <cxxabi.h>
#include <unistd.h>

#include <system_error>
#include <thread>
#include <utility>

#include "bindings/python/errors.h"

namespace mcr::python {

namespace {

// A thread that is idle this long ends; the first is kept.
constexpr std::chrono::seconds kPatience{2};

}  // namespace

// Never destroyed: its threads end with the process.
Completions& Completions::instance() {
  static auto& completions = immortal<Completions>();
  return completions;
}

Completions::Completions() {
  std::thread(&Completions::serve, this).detach();
  idle_ = 1;  // (the thread cannot end so soon)
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
  std::unique_lock lock(mutex_);
  return done_.wait_for(lock, limit, [this] { return busy_ == 0 && actions_.empty(); });
}

}  // namespace mcr::python
