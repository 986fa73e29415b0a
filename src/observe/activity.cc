// SPDX-License-Identifier: Apache-2.0
#include "observe/activity.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <optional>

#include "base/immortal.h"

namespace mcr {

Activity::Mark::Mark() : thread(::syscall(SYS_gettid)) {}

constinit thread_local Activity::Mark* Activity::of_thread_ = nullptr;
std::atomic<const Activity::Mark*> Activity::of_main_{nullptr};

class Activity::List {
 public:
  // Never destroyed: threads end at any time.
  static List& instance() {
    static auto& list = immortal<List>();
    return list;
  }

  std::mutex mutex;
  std::vector<Mark*> all;  // guarded by mutex
};

struct Activity::OfThread {
  OfThread() {
    const std::lock_guard lock(List::instance().mutex);
    List::instance().all.push_back(&mark);
    if (mark.thread == ::getpid()) of_main_.store(&mark, std::memory_order_release);
  }
  OfThread(const OfThread&) = delete;
  OfThread& operator=(const OfThread&) = delete;
  ~OfThread() {
    const std::lock_guard lock(List::instance().mutex);
    std::erase(List::instance().all, &mark);
    if (of_main_.load(std::memory_order_relaxed) == &mark) of_main_.store(nullptr, std::memory_order_release);
  }
  Mark mark;
};

Activity::Mark& Activity::make_mark() {
  thread_local OfThread mine;
  of_thread_ = &mine.mark;
  return mine.mark;
}

std::optional<Activity::Reading> Activity::read(const Mark& mark) {
  Reading reading;
  reading.turn = mark.turn.load(std::memory_order_acquire);
  if (reading.turn % 2 == 0) return std::nullopt;
  reading.thread = mark.thread;
  reading.what.label = mark.label.load(std::memory_order_acquire);
  reading.what.backend = mark.backend.load(std::memory_order_acquire);
  reading.what.seq = mark.seq.load(std::memory_order_acquire);
  reading.what.bytes = mark.bytes.load(std::memory_order_acquire);
  reading.what.limit = std::chrono::milliseconds(mark.limit.load(std::memory_order_acquire));
  const auto kind = mark.kind.load(std::memory_order_acquire);
  reading.what.op = static_cast<Op>(kind & 0xff);
  reading.what.connects = (kind & kConnects) != 0;
  reading.what.waits = (kind & kWaits) != 0;
  if (mark.turn.load(std::memory_order_acquire) != reading.turn) return std::nullopt;
  return reading;
}

Activity::Pause::Pause() noexcept {
  if (of_thread_ == nullptr) return;
  const auto reading = read(*of_thread_);
  if (!reading) return;
  call_ = reading->what;
  paused_ = true;
  of_thread_->turn.store(reading->turn + 1, std::memory_order_release);
}

Activity::Pause::~Pause() {
  if (paused_) begin(*of_thread_, call_);
}

Activity::Polling::Polling() noexcept {
  if (!call_.paused_) return;
  auto polling = call_.call_;
  polling.waits = true;
  begin(*of_thread_, polling);
}

Activity::Polling::~Polling() {
  if (call_.paused_) end(*of_thread_);
}

uint64_t Activity::turn_of_main() noexcept {
  const auto* mark = of_main_.load(std::memory_order_acquire);
  return mark == nullptr ? 0 : mark->turn.load(std::memory_order_relaxed);
}

std::vector<Activity::Reading> Activity::all() {
  std::vector<Reading> readings;
  const std::lock_guard lock(List::instance().mutex);
  for (const auto* mark : List::instance().all) {
    if (auto reading = read(*mark)) readings.push_back(*reading);
  }
  return readings;
}

}  // namespace mcr
