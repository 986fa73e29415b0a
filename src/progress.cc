// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace mcr {

namespace {

using std::chrono::microseconds;

// A sweep looks at this many of the oldest works: operations end roughly in order, and a sweep over thousands would
// hold the library's lock for milliseconds.
constexpr std::size_t kSweep = 64;

// Whoever waits polls for itself, so this thread may sleep: often enough to keep transfers moving, rarely enough to
// leave the cores to the program.
constexpr microseconds kFirstNap{50};
constexpr microseconds kLongestNap{200};

// It stays half awake for so many naps after the last operation, because waking it costs as much as a small message.
constexpr int kIdleNaps = 50;

}  // namespace

void Progress::stop() {
  std::jthread thread;
  {
    std::lock_guard lock(mutex_);
    thread.swap(thread_);
  }
  thread.request_stop();  // the destructor joins
}

void Progress::watch(std::shared_ptr<Work> work) {
  std::lock_guard lock(mutex_);
  works_.push_back(std::move(work));
  if (!thread_.joinable()) {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  } else if (asleep_) {
    wake_.notify_one();
  }
}

bool Progress::drain(std::chrono::nanoseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    std::shared_ptr<Work> oldest;
    {
      std::lock_guard lock(mutex_);
      if (works_.empty()) return true;
      oldest = works_.front();
    }
    const auto left = deadline - std::chrono::steady_clock::now();
    if (!oldest->wait_for(std::max<std::chrono::nanoseconds>(left, std::chrono::nanoseconds::zero()))) return false;
    sweep();
  }
}

void Progress::run(const std::stop_token& stop) {
  DeviceRuntime::enter_background_everywhere();
  auto nap = kFirstNap;
  int idle = 0;
  while (!stop.stop_requested()) {
    const bool some = sweep();
    const bool waited_for = waiting_.load(std::memory_order_relaxed) > 0;
    nap = some && !waited_for ? kFirstNap : std::min(nap * 2, kLongestNap);
    std::this_thread::sleep_for((waited_for ? kLongestNap : nap) * patience_.load(std::memory_order_relaxed));
    idle = some ? 0 : idle + 1;
    if (idle < kIdleNaps) continue;
    if (!sleep_while_idle(stop)) return;
    idle = 0;
    nap = kFirstNap;
  }
}

// Until there is something to do; false when it is time to end.
bool Progress::sleep_while_idle(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  asleep_ = true;
  const bool woken = wake_.wait(lock, stop, [this] { return !works_.empty(); });
  asleep_ = false;
  return woken;
}

// Polls outside the mutex: a callback may issue the next operation. True if a work has completed.
bool Progress::sweep() {
  std::vector<std::shared_ptr<Work>> batch;
  {
    std::lock_guard lock(mutex_);
    const auto count = std::min(works_.size(), kSweep);
    batch.assign(works_.begin(), works_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  for (auto& work : batch) work->poll();
  std::vector<std::shared_ptr<Work>> done;  // released outside the mutex: tensors may be freed with them
  {
    std::lock_guard lock(mutex_);
    const auto end = works_.begin() + static_cast<std::ptrdiff_t>(std::min(works_.size(), kSweep));
    const auto middle = std::stable_partition(works_.begin(), end, [](const auto& work) { return !work->settled(); });
    done.assign(std::make_move_iterator(middle), std::make_move_iterator(end));
    works_.erase(middle, end);
    // Rotate what is left, so that operations which cannot end yet do not hide the others from the next sweep.
    if (done.empty() && works_.size() > kSweep) std::rotate(works_.begin(), works_.begin() + kSweep, works_.end());
  }
  return !done.empty();
}

}  // namespace mcr
