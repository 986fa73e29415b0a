// SPDX-License-Identifier: Apache-2.0
// Per-thread marks of the current call, sampled by the watchdog.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ops.h"

namespace mcr {

/// Marks the calling thread as being inside a call, for its lifetime. Costs a few stores. If the thread is already
/// marked, the outer mark stays. All pointers must live as long as the process.
class Activity {
 public:
  struct What {
    const std::string* label = nullptr;    // the group's
    const std::string* backend = nullptr;  // null: not chosen yet
    int64_t seq = 0;
    int64_t bytes = -1;
    std::chrono::milliseconds limit{0};
    Op op = Op::barrier;
    bool connects = false;  // inside the creation of communicators: `op` is not used
    bool waits = false;     // polls, and looks for its timeout, lost ranks and Ctrl-C itself
  };

  explicit Activity(const What& what) noexcept {
    auto* const mark = of_thread_ != nullptr ? of_thread_ : &make_mark();
    const auto turn = mark->turn.load(std::memory_order_relaxed);
    if (turn % 2 != 0) return;
    mark_ = mark;
    begin(*mark, what);
  }
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;
  ~Activity() {
    if (mark_ != nullptr) end(*mark_);
  }

  /// For its lifetime, the calling thread is not inside its call, as in code of the program that a call runs: calls
  /// that it makes meanwhile have marks of their own, and the time of the first call begins anew at the end.
  class Pause {
   public:
    Pause() noexcept;
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
    ~Pause();

   private:
    friend class Activity;
    What call_;
    bool paused_ = false;
  };

  /// For its lifetime, the call that the calling thread is inside `waits`: the watch leaves it alone. The time of the
  /// call begins anew at both ends.
  class Polling {
   public:
    Polling() noexcept;
    Polling(const Polling&) = delete;
    Polling& operator=(const Polling&) = delete;
    ~Polling();

   private:
    const Pause call_;
  };

  /// One thread's activity, as other threads see it. `turn` tells the thread's activities apart.
  struct Reading {
    uint64_t turn = 0;
    int64_t thread = 0;  // the system's thread id
    What what;
  };
  /// The activities of all threads that are inside a call.
  static std::vector<Reading> all();
  /// The turn of the main thread, odd while it is inside a call. Signal handlers may call it.
  static uint64_t turn_of_main() noexcept;

 private:
  // A thread's mark. The turn is odd while the thread is inside a call; a reader checks that it has not changed
  // meanwhile. (Releases and acquires instead of fences, which ThreadSanitizer does not support.)
  struct Mark {
    Mark();
    std::atomic<uint64_t> turn{0};
    std::atomic<const std::string*> label{nullptr};
    std::atomic<const std::string*> backend{nullptr};
    std::atomic<int64_t> seq{0}, bytes{0}, limit{0};
    std::atomic<uint32_t> kind{0};
    const int64_t thread;
  };
  class List;
  struct OfThread;
  static constexpr uint32_t kConnects = 1u << 8;
  static constexpr uint32_t kWaits = 1u << 9;

  static void end(Mark& mark) noexcept {
    mark.turn.store(mark.turn.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  static void begin(Mark& mark, const What& what) noexcept {
    mark.label.store(what.label, std::memory_order_release);
    mark.backend.store(what.backend, std::memory_order_release);
    mark.seq.store(what.seq, std::memory_order_release);
    mark.bytes.store(what.bytes, std::memory_order_release);
    mark.limit.store(what.limit.count(), std::memory_order_release);
    mark.kind.store(static_cast<uint32_t>(what.op) | (what.connects ? kConnects : 0) | (what.waits ? kWaits : 0),
                    std::memory_order_release);
    mark.turn.store(mark.turn.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  static Mark& make_mark();
  static std::optional<Reading> read(const Mark& mark);
  static std::atomic<const Mark*> of_main_;  // null before the main thread's first call

  // A plain pointer: a thread-local object with a destructor costs a check on each use. (It takes eight bytes of the
  // space that the loader reserves for libraries loaded late.)
  [[gnu::tls_model("initial-exec")]] static constinit thread_local Mark* of_thread_;
  Mark* mark_ = nullptr;  // the thread's mark, if this is its outermost activity
};

}  // namespace mcr
