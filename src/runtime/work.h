// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/lazy_vector.h"
#include "device/event_pool.h"
#include "plugin/backend.h"
#include "runtime/extras.h"

namespace mcr {

class Progress;

/// Called now and then by a waiting thread. It may throw, which ends the wait and leaves the operation running.
using Interrupt = void (*)();
/// Waits look at this interval whether they are to end: Ctrl-C and lost ranks are noticed within this time.
inline constexpr std::chrono::milliseconds kLookInterval{100};

/// A lock that the caller of an operation holds, such as Python's GIL. Released before the call waits, copies much or
/// runs other parts of the program.
class CallerLock {
 public:
  /// Does nothing if the lock has been released already.
  virtual void release() = 0;

 protected:
  ~CallerLock() = default;
};

/// Takes the time that the caller of an asynchronous call waits for it.
class WaitTime {
 public:
  virtual ~WaitTime() = default;
  /// A wait has seen the end of the operation after so long. From any thread.
  virtual void waited(std::chrono::nanoseconds time) noexcept = 0;
};

/// A request of an operation that may still be running when it fails (Request::lingers()).
class Lingering : public Request {
 public:
  bool poll() final {
    if (failed_) return rested();
    try {
      return step();
    } catch (...) {
      failed_ = true;
      throw;
    }
  }
  bool lingers() const final { return failed_ && !rested(); }

 protected:
  /// As poll(), until it has thrown.
  virtual bool step() = 0;
  /// After step() has thrown: whether nothing is running any more. Never waits. If it throws, nothing more can be
  /// learnt, and the request ends.
  virtual bool rest() const = 0;

 private:
  bool rested() const noexcept {
    try {
      return rest();
    } catch (...) {
      return true;
    }
  }

  bool failed_ = false;
};

/// The name of a call in errors: "mpi.all_reduce (group 'default', rank 1 of 4)".
std::string describe(const std::string& backend, std::string_view function, const std::string& group);

/// The handle of an asynchronous call. It owns what the operation needs (requests, scratch memory, the caller's
/// tensors) and is itself owned by the caller and, until it is complete, by its backend's progress thread: a dropped
/// Work still completes. Every method may be called from any thread.
class Work {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  /// The call's identity, for errors, and objects that outlive it.
  struct Context {
    Op op;
    const std::string* group;         // its label, from Position: it lives as long as the process
    const std::string* backend;       // owned by the registry, which is never destroyed
    Progress* progress;               // its backend's, also owned by the registry
    std::chrono::milliseconds limit;  // the limit of wait() if none is given
    int64_t seq = 0;                  // the call's number in its group
    int64_t bytes = -1;               // the data's size; -1 where ranks may see different sizes
    bool brief = false;               // polls of its requests are brief (Communicator::brief)
  };

  /// The Work keeps `communicator`, which may be null, until it has finished.
  Work(const Context& context, Extras&& extras, std::shared_ptr<Communicator> communicator = nullptr)
      : communicator_(std::move(communicator)), context_(context), extras_(std::move(extras)) {}
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Takes the started requests. Called once, before the Work is shared.
  void attach(Requests requests) { requests_ = std::move(requests); }

  /// Sets the point in a device's work at which the operation ends. Called once, before the Work is shared.
  void set_point(std::shared_ptr<StreamPoint> point) { point_ = std::move(point); }
  /// Sets who takes the time of waits. Called once, before the Work is shared.
  void set_wait_time(std::shared_ptr<WaitTime> taker) { wait_time_ = std::move(taker); }
  /// Null: it is not taken.
  WaitTime* wait_time() const noexcept { return wait_time_.get(); }
  /// A waiting thread also makes the caller's stream wait, as that stream is another library's.
  void set_external_stream() {
    if (point_ != nullptr) point_->set_external_stream();
  }
  /// Null for host operations, and until the operation's last step has been enqueued on the device: the host must wait
  /// then.
  StreamPoint* point() const { return point_ != nullptr && point_->recorded() ? point_.get() : nullptr; }
  /// Makes the current stream wait for the operation; false if it has no point yet. Throws the operation's error.
  /// Releases memory that only the operation still holds, if the stream's own order protects it.
  bool join();

  /// Makes the first step of progress, before the Work is shared.
  void begin() noexcept;
  /// Makes one step of progress; never waits. True once complete, with or without an error. `brief`: the caller holds a
  /// lock (BriefPolls).
  bool poll(bool brief = false) noexcept;
  /// Waits at most `limit`. False if the operation is still running then, unless `point_suffices` and it has a point.
  /// Never throws.
  bool wait_for(Nanoseconds limit, bool point_suffices = false) noexcept;
  /// Rethrows the operation's error, if it is complete and has one.
  void rethrow() const;

  /// Ends an operation that is not complete with this error. Its requests are still polled, as the library still uses
  /// their memory. False if it was complete, or if another thread stays in a library that it polls.
  bool expire(ErrorCode code, const std::string& text) noexcept;
  /// The call has ended for its caller, with an error: other calls do not wait for what is still to be issued for it.
  void abandon() noexcept;
  /// Names the operation that must be issued before this one, for error messages; empty once this one is issued, or if
  /// another thread stays in a library that it polls.
  std::string behind() const;
  /// Time since the watchdog first saw this Work: the call itself does not read the clock.
  Nanoseconds observed(std::chrono::steady_clock::time_point now) noexcept;

  /// Another call is made by means of this Work; several may be. The watchdog ends these calls alone: where a part ends
  /// early, no later part is issued, and the ranks' calls no longer match.
  void set_part() noexcept { carried_.fetch_add(1, std::memory_order_relaxed); }
  bool is_part() const noexcept { return carried_.load(std::memory_order_relaxed) != 0; }
  /// One of these calls has ended with an error: once all have, abandon().
  void abandon_part() noexcept {
    if (abandoned_.fetch_add(1) + 1 == carried_) abandon();
  }
  /// A thread waits for `limit`, until `deadline`. If that is longer than the Work's own limit, the Work lasts as long.
  void set_waited_for(std::chrono::milliseconds limit, std::chrono::steady_clock::time_point deadline) noexcept;
  /// The watchdog is to end this Work: it was first seen longer ago than its limit and `grace`, and no thread has begun
  /// to wait for longer.
  bool overdue(std::chrono::steady_clock::time_point now, Nanoseconds grace) noexcept;

  /// Complete, and no request is running: after an error, other requests may still use the memory.
  bool finished() const noexcept { return finished_.load(std::memory_order_acquire); }
  bool completed() const noexcept { return completed_.load(std::memory_order_acquire); }
  bool failed() const noexcept { return completed() && failure_.has_value(); }
  /// Over for the program: complete with its last steps, or with an error, after which requests may still run.
  bool ended() const noexcept { return finished() || failed(); }
  Progress* progress() const { return context_.progress; }
  std::chrono::milliseconds limit() const { return context_.limit; }
  std::string what() const;
  const Context& context() const { return context_; }
  /// The operation runs, and its communicator has been given up. False also while a thread polls it.
  bool given_up() const noexcept;
  Subject subject() const;
  const Extras& extras() const { return extras_; }
  /// Group rank that sent the received message, once the receive is complete or has its point; else -1.
  int source() const;

  /// Complete, and waiting for it needs no further step.
  bool over() const noexcept { return finished() && point_ == nullptr; }
  /// The bindings' object for this Work, or null. Only for the bindings.
  void*& handle() noexcept { return handle_; }

  /// The number of its record in the log, 0 if there is none or the record is complete.
  int64_t record() const noexcept { return record_.load(std::memory_order_relaxed); }
  void set_record(int64_t number) noexcept { record_.store(number, std::memory_order_relaxed); }
  /// For one caller, which completes the record; 0 for all others.
  int64_t take_record() noexcept { return record() == 0 ? 0 : record_.exchange(0, std::memory_order_relaxed); }

  /// Runs `callback` once: on completion, on the thread that sees it, or now if already complete. Waiting threads may
  /// return before it has run. It must not throw.
  void on_done(std::function<void()> callback);
  /// A thread sleeps until the Work is complete, without polling: the progress thread polls often.
  void set_awaited();

 private:
  bool take_turn() const noexcept;
  bool advance(bool brief);
  std::shared_ptr<Communicator> fail() noexcept;
  void keep_error() noexcept;
  void complete() noexcept;
  std::shared_ptr<Communicator> finish() noexcept;

  std::shared_ptr<Communicator> communicator_;  // null once finished; guarded by busy_
  const Context context_;
  Extras extras_;
  Requests requests_;
  std::size_t next_ = 0;  // requests before it have ended; guarded by busy_
  std::atomic<bool> finished_{false};
  std::shared_ptr<StreamPoint> point_;
  std::shared_ptr<WaitTime> wait_time_;
  std::atomic_flag released_ = ATOMIC_FLAG_INIT;
  std::atomic<int64_t> record_{0};
  std::atomic<int64_t> first_observed_{0};
  std::atomic<int64_t> longest_wait_{0};        // the end of the longest wait, if it is longer than the limit
  std::atomic<int> carried_{0}, abandoned_{0};  // calls that are made by means of this Work
  mutable std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::optional<Error> failure_;  // written before completed_
  std::atomic<bool> completed_{false};
  std::atomic_flag adding_ = ATOMIC_FLAG_INIT;   // guards callbacks_
  LazyVector<std::function<void()>> callbacks_;  // empty once completed_ is set and seen under the flag
  std::atomic_flag awaited_ = ATOMIC_FLAG_INIT;
  void* handle_ = nullptr;
};

}  // namespace mcr
