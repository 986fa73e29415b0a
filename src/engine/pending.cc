// SPDX-License-Identifier: Apache-2.0
#include "engine/pending.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace mcr {

namespace {

struct List {
  std::mutex mutex;
  std::vector<std::shared_ptr<PendingIssues>> all;  // guarded by mutex
};

// Never destroyed: threads may still use it during process exit.
List& list() {
  static auto& made = *std::make_unique<List>().release();
  return made;
}

// A wait checks the clock and Ctrl-C after this many rounds.
constexpr int kRounds = 100;

}  // namespace

std::atomic<int> PendingIssues::count_{0};

void PendingIssues::set_pending(bool now) {
  if (now == pending_) return;
  pending_ = now;
  const std::lock_guard lock(list().mutex);
  if (now) {
    list().all.push_back(shared_from_this());
    count_.fetch_add(1, std::memory_order_relaxed);
  } else {
    std::erase_if(list().all, [this](const auto& one) { return one.get() == this; });
    count_.fetch_sub(1, std::memory_order_relaxed);
  }
}

bool PendingIssues::synchronize(std::chrono::nanoseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    hurry();
    if (!pending_) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::yield();
  }
}

void PendingIssues::finish(std::chrono::milliseconds limit, Interrupt interrupt) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (int round = 1; any(); ++round) {
    std::vector<std::shared_ptr<PendingIssues>> all;
    {
      const std::lock_guard lock(list().mutex);
      all = list().all;
    }
    for (const auto& one : all) one->hurry();
    if (!any()) return;
    std::this_thread::yield();
    if (round % kRounds != 0) continue;
    if (std::chrono::steady_clock::now() >= deadline) {
      throw Error(ErrorCode::Timeout, "timed out: calls held by a pass are still pending after the timeout of " +
                                          std::to_string(limit.count()) + " ms; another rank has not issued them");
    }
    if (interrupt != nullptr) interrupt();
  }
}

}  // namespace mcr
