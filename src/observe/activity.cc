// SPDX-License-Identifier: Apache-2.0
#include "observe/activity.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

namespace mcr {

namespace {

// A thread's mark. The turn is odd while the thread is inside; whoever reads checks that it has not changed meanwhile.
// (Releases and acquires instead of fences, which the thread sanitizer does not know.)
struct Mark {
  std::atomic<uint64_t> turn{0};
  std::atomic<const std::string*> label{nullptr};
  std::atomic<const std::string*> backend{nullptr};
  std::atomic<int64_t> seq{0}, bytes{0}, limit{0};
  std::atomic<uint32_t> kind{0};
  const int64_t thread = ::syscall(SYS_gettid);
};

constexpr uint32_t kConnects = 1u << 8;
constexpr uint32_t kWaits = 1u << 9;

struct Marks {
  std::mutex mutex;
  std::vector<Mark*> all;  // guarded by mutex
};

// Never destroyed: threads end at any time.
Marks& marks() {
  static auto& list = *std::make_unique<Marks>().release();
  return list;
}

struct ThreadMark {
  ThreadMark() {
    const std::lock_guard lock(marks().mutex);
    marks().all.push_back(&mark);
  }
  ThreadMark(const ThreadMark&) = delete;
  ThreadMark& operator=(const ThreadMark&) = delete;
  ~ThreadMark() {
    const std::lock_guard lock(marks().mutex);
    std::erase(marks().all, &mark);
  }
  Mark mark;
};

// A plain pointer in front of it: what has a destructor is asked on each use whether it is there already.
thread_local Mark* of_thread = nullptr;

Mark& own() {
  if (of_thread == nullptr) {
    thread_local ThreadMark mine;
    of_thread = &mine.mark;
  }
  return *of_thread;
}

std::optional<Activity::Reading> read(const Mark& mark) {
  Activity::Reading reading;
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

}  // namespace

Activity::Activity(const What& what) noexcept {
  auto& mark = own();
  const auto turn = mark.turn.load(std::memory_order_relaxed);
  mark_ = turn % 2 == 0 ? &mark : nullptr;
  if (mark_ == nullptr) return;
  mark.label.store(what.label, std::memory_order_release);
  mark.backend.store(what.backend, std::memory_order_release);
  mark.seq.store(what.seq, std::memory_order_release);
  mark.bytes.store(what.bytes, std::memory_order_release);
  mark.limit.store(what.limit.count(), std::memory_order_release);
  mark.kind.store(static_cast<uint32_t>(what.op) | (what.connects ? kConnects : 0) | (what.waits ? kWaits : 0),
                  std::memory_order_release);
  mark.turn.store(turn + 1, std::memory_order_release);
}

Activity::~Activity() {
  if (mark_ == nullptr) return;
  auto& mark = *static_cast<Mark*>(mark_);
  mark.turn.store(mark.turn.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

std::vector<Activity::Reading> Activity::all() {
  std::vector<Reading> readings;
  const std::lock_guard lock(marks().mutex);
  for (const auto* mark : marks().all) {
    if (auto reading = read(*mark)) readings.push_back(*reading);
  }
  return readings;
}

}  // namespace mcr
