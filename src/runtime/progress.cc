// SPDX-License-Identifier: Apache-2.0
#include "runtime/progress.h"

#include <sys/prctl.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"

namespace mcr {

namespace {

using std::chrono::microseconds;

// A sweep polls this many of the oldest Works: operations end roughly in order, and a sweep over thousands would hold
// the library's lock for milliseconds.
constexpr std::size_t kSweep = 64;

// In addition, a sweep releases up to this many of the oldest Works that are complete: waiting threads complete small
// operations faster than sweeps of kSweep could follow, and a complete Work still owns its tensors.
constexpr std::size_t kRelease = 1024;

// Waiting threads poll for themselves, so this thread may sleep: often enough to keep transfers moving, rarely enough
// to leave the cores to the program.
constexpr microseconds kFirstNap{100};
constexpr microseconds kLongestNap{250};

// Used while a thread sleeps until an operation is complete. A small operation on one host takes as long as a few of
// these.
constexpr microseconds kFirstShortNap{5};
constexpr microseconds kLongestShortNap{40};

constexpr unsigned long kTimerSlackNanoseconds = 1000;

// The thread keeps napping this many times after the last operation: waking it from sleep costs its caller as much as a
// small message, and a nap costs the core, which may compute, nearly as much.
constexpr int kIdleNaps = 4;

thread_local bool moved = false;    // data has moved in this thread since the last sweep began
thread_local bool briefly = false;  // it polls under a lock of its caller

}  // namespace

void poll_again_soon() noexcept { moved = true; }

bool BriefPolls::here() noexcept { return briefly; }

void BriefPolls::set(bool brief) noexcept { briefly = brief; }

void Progress::set_patience(int factor) noexcept {
  auto before = patience_.load(std::memory_order_relaxed);
  while (before < factor && !patience_.compare_exchange_weak(before, factor, std::memory_order_relaxed)) continue;
}

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
    start_thread();
  } else if (asleep_) {
    wake_.notify_one();
  }
}

// With the mutex.
void Progress::start_thread() {
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::Backend, std::string("expected a thread for operations that are under way, got none: ") +
                                        error.what() + "; raise the limit of processes (ulimit -u)");
  }
}

void Progress::forget(const Work& work) {
  std::shared_ptr<Work> left;  // released outside the mutex
  const std::lock_guard lock(mutex_);
  if (works_.empty()) return;
  if (works_.back().get() == &work) {
    left.swap(works_.back());
    works_.pop_back();
  } else if (works_.front().get() == &work) {
    left.swap(works_.front());
    works_.pop_front();
  }
}

void Progress::enter_sleep() {
  if (sleeping_.fetch_add(1, std::memory_order_relaxed) > 0) return;
  std::lock_guard lock(mutex_);
  woken_ = true;
  wake_.notify_one();
}

std::vector<std::shared_ptr<Work>> Progress::watched(std::size_t most, const std::function<bool(Work&)>& wanted) {
  std::vector<std::shared_ptr<Work>> found;
  std::lock_guard lock(mutex_);
  for (const auto& work : works_) {
    if (found.size() >= most) break;
    if (!wanted || wanted(*work)) found.push_back(work);
  }
  return found;
}

bool Progress::drain(std::chrono::nanoseconds limit, Interrupt interrupt) {
  constexpr std::chrono::nanoseconds kNone(0);
  auto checked = std::chrono::steady_clock::now();
  const auto deadline = checked + limit;
  while (const auto work = running()) {
    const auto now = std::chrono::steady_clock::now();
    const bool over = work->wait_for(std::clamp<std::chrono::nanoseconds>(deadline - now, kNone, kLookInterval));
    sweep();
    if (work->ended()) continue;
    if (now >= deadline) return false;
    if (interrupt != nullptr && now - checked >= kLookInterval) {
      interrupt();
      checked = now;
    }
    if (over) std::this_thread::yield();  // another thread is in its last steps
  }
  return true;
}

// A Work that has not ended for the program, or null. Releases those that are complete.
std::shared_ptr<Work> Progress::running() {
  std::vector<std::shared_ptr<Work>> done;  // released outside the mutex
  const std::lock_guard lock(mutex_);
  for (auto left = works_.size(); left > 0; --left) {
    auto& work = works_.front();
    if (!work->ended() && !work->is_part()) return work;
    auto& place = work->finished() ? done.emplace_back() : works_.emplace_back();
    place = std::move(works_.front());
    works_.pop_front();
  }
  return nullptr;
}

void Progress::run(const std::stop_token& stop) {
  DeviceRuntime::enter_background_everywhere();
  prctl(PR_SET_TIMERSLACK, kTimerSlackNanoseconds);  // makes short naps accurate
  auto nap = kFirstNap;
  int idle = 0;
  while (!stop.stop_requested()) {
    moved = false;
    const bool some = sweep();
    nap = nap_after(some, nap);
    bool none = false;
    {
      std::unique_lock lock(mutex_);
      none = works_.empty();
      if (wake_.wait_for(lock, stop, nap, [this] { return woken_; })) nap = kFirstShortNap;
      woken_ = false;
    }
    idle = none ? idle + 1 : 0;
    if (idle < kIdleNaps) continue;
    if (!sleep_while_idle(stop)) return;
    idle = 0;
    nap = kFirstNap;
  }
}

microseconds Progress::nap_after(bool ended, microseconds before) const {
  const int patience = patience_.load(std::memory_order_relaxed);
  if (waiting_.load(std::memory_order_relaxed) > 0) return kLongestNap * patience;
  if (moved) return kFirstShortNap * patience;  // the other ranks need as long to take it and go on
  if (frequent_.load(std::memory_order_relaxed) > 0 || sleeping_.load(std::memory_order_relaxed) > 0) {
    return (ended ? kFirstShortNap : std::min(before * 2, kLongestShortNap)) * patience;
  }
  return ended ? kFirstNap * patience : std::min(before * 2, kLongestNap * patience);
}

// Sleeps until there is something to do; false if the thread is to end.
bool Progress::sleep_while_idle(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  asleep_ = true;
  const bool woken = wake_.wait(lock, stop, [this] { return !works_.empty(); });
  asleep_ = false;
  return woken;
}

// Polls outside the mutex: a callback may issue the next operation. Returns true if a Work has completed.
bool Progress::sweep() {
  std::vector<std::shared_ptr<Work>> batch;
  std::vector<std::shared_ptr<Work>> done;  // released outside the mutex: tensors may be freed with them
  {
    std::lock_guard lock(mutex_);
    for (; !works_.empty() && works_.front()->finished() && done.size() < kRelease; works_.pop_front()) {
      done.push_back(std::move(works_.front()));
    }
    const auto count = std::min(works_.size(), kSweep);
    batch.assign(works_.begin(), works_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  for (auto& work : batch) work->poll();
  {
    std::lock_guard lock(mutex_);
    const auto end = works_.begin() + static_cast<std::ptrdiff_t>(std::min(works_.size(), kSweep));
    const auto middle = std::stable_partition(works_.begin(), end, [](const auto& work) { return !work->finished(); });
    done.insert(done.end(), std::make_move_iterator(middle), std::make_move_iterator(end));
    works_.erase(middle, end);
    // Rotate the rest, so that operations which cannot end yet do not hide the others from the next sweep.
    if (done.empty() && works_.size() > kSweep) std::rotate(works_.begin(), works_.begin() + kSweep, works_.end());
  }
  return !done.empty();
}

}  // namespace mcr
