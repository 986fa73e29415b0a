// SPDX-License-Identifier: Apache-2.0
#include "engine/wait.h"

#include <algorithm>
#include <limits>
#include <string>

#include "group/group.h"
#include "observe/activity.h"
#include "observe/position.h"
#include "observe/recorder.h"
#include "observe/stop.h"
#include "runtime/progress.h"
#include "runtime/registry.h"

namespace mcr {

namespace {

// Tells the backend's progress thread that a thread is polling.
class Waiting {
 public:
  explicit Waiting(Progress* progress) : progress_(progress) {
    if (progress_ != nullptr) progress_->enter_wait();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() {
    if (progress_ != nullptr) progress_->leave_wait();
  }

 private:
  Progress* progress_;
};

// How often a waiting caller polls a brief operation before it releases its lock: about as long as releasing and taking
// it again take.
constexpr int kPollsWithLock = 32;

// How long the works of a group that ends are tried to end.
constexpr std::chrono::seconds kEnding{1};

// Adds a wait for an incomplete Work to its record, if there is one.
class LoggedWait {
 public:
  explicit LoggedWait(const Work& work)
      : number_(work.completed() ? 0 : work.record()), begin_(number_ == 0 ? 0 : Recorder::now()) {
    if (number_ != 0) Recorder::instance().waiting(number_, begin_);
  }
  LoggedWait(const LoggedWait&) = delete;
  LoggedWait& operator=(const LoggedWait&) = delete;
  ~LoggedWait() {
    if (number_ != 0) Recorder::instance().waited(number_, begin_, Recorder::now());
  }

 private:
  int64_t number_;
  int64_t begin_;
};

// Passes the time of a wait that sees the end on to the Work.
class TimedWait {
 public:
  explicit TimedWait(Work& work) : work_(work) {
    if (work.wait_time() != nullptr) [[unlikely]]
      begin_ = std::chrono::steady_clock::now();
  }
  TimedWait(const TimedWait&) = delete;
  TimedWait& operator=(const TimedWait&) = delete;
  ~TimedWait() {
    if (work_.wait_time() == nullptr || !work_.completed()) [[likely]]
      return;
    work_.wait_time()->waited(std::chrono::steady_clock::now() - begin_);
  }

 private:
  Work& work_;
  std::chrono::steady_clock::time_point begin_;
};

// Whether a few polls see the end, which is the case for most small operations of ranks on one host. Only longer waits
// are worth the marks and clocks for timeouts.
bool polls_through(Work& work) {
  constexpr int kPolls = 16;
  for (int polls = 0; polls < kPolls; ++polls) {
    if (work.poll()) return true;
  }
  return false;
}

// The end of a wait for a host operation.
void leave(Work& work) {
  if (work.finished() && work.progress() != nullptr) work.progress()->forget(work);
  work.rethrow();
}

// The group may be asked while a thread stays in the poll of the work, whose communicator may not.
bool aborted(const Work& work) { return Position::given_up(*work.context().group) || work.given_up(); }

std::string aborted_text(const Work& work) { return work.what() + ": the group has been aborted"; }

std::string destroyed_text(const Work& work) { return work.what() + ": " + destroyed_group().what(); }

// The work is over for the program: nothing waits for it any more, though the library may still have it.
[[noreturn]] void end(Work& work, ErrorCode code, const std::string& text) {
  if (!work.expire(code, text)) work.abandon();
  throw Error(code, text);
}

// False: the work is complete, or a thread stays in its poll.
bool ended_with_group(Work& work) noexcept {
  const auto* lost = Position::lost(*work.context().group);
  if (lost != nullptr) return work.expire(ErrorCode::PeerLost, work.what() + ": " + *lost);
  if (Stop::requested()) return work.expire(ErrorCode::Desync, Stop::text());
  return work.expire(ErrorCode::NotInitialized, destroyed_text(work));
}

}  // namespace

void check_wait(const Position& position, Interrupt interrupt) {
  Stop::check();
  if (const auto* lost = position.lost()) throw Error(ErrorCode::PeerLost, *lost);
  if (position.closed()) throw destroyed_group();
  if (interrupt != nullptr) interrupt();
}

Error late(const Work& work, std::chrono::milliseconds limit) {
  const auto& call = work.context();
  const auto behind = work.behind();
  const auto kind = row(call.op).is(kPeer) ? "message " : "collective ";
  return {ErrorCode::Timeout,
          work.what() + ": " + kind + std::to_string(call.seq) +
              (call.bytes > 0 ? " of " + std::to_string(call.bytes) + " bytes" : "") +
              " timed out: still running after the timeout of " + std::to_string(limit.count()) + " ms" +
              (behind.empty() ? behind : "; it is issued after " + behind),
          work.subject()};
}

void wait(Work& work, std::chrono::milliseconds limit, Interrupt interrupt, CallerLock* lock,
          std::optional<std::chrono::steady_clock::time_point> begin, const Position* position) {
  const TimedWait timed(work);
  if (work.over()) return work.rethrow();
  const LoggedWait logged(work);
  if (work.context().brief && lock != nullptr) {
    for (int poll = 0; poll < kPollsWithLock; ++poll) {
      if (work.poll(true)) return leave(work);
    }
  }
  if (lock != nullptr) lock->release();
  if (work.join()) return;
  const Waiting waiting(work.progress());
  if (polls_through(work)) return leave(work);
  const auto& call = work.context();
  const Activity::Pause pause;  // of a blocking call that polls: its timeout and Ctrl-C end it here
  const Activity activity({.label = call.group,
                           .backend = call.backend,
                           .seq = call.seq,
                           .bytes = call.bytes,
                           .limit = limit,
                           .op = call.op,
                           .waits = true});
  const auto deadline = begin.value_or(std::chrono::steady_clock::now()) + limit;
  work.set_waited_for(limit, deadline);
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (work.wait_for(std::clamp(left, std::chrono::milliseconds(0), kLookInterval), true)) break;
    if (left.count() <= 0) {
      // A shorter limit, given to this wait alone, is not the call's end: the program may wait again.
      if (work.limit().count() > 0 && limit >= work.limit()) {
        work.observed(deadline - limit);  // a blocking call's Work is new to the watchdog, which ends it at once
        work.abandon();
      }
      throw late(work, limit);
    }
    Stop::check();
    if (const auto* lost = Position::lost(*call.group)) throw Error(ErrorCode::PeerLost, work.what() + ": " + *lost);
    if (interrupt != nullptr) interrupt();
    if (aborted(work)) end(work, ErrorCode::Backend, aborted_text(work));
    if (position != nullptr && position->closed()) end(work, ErrorCode::NotInitialized, destroyed_text(work));
  }
  if (!work.join()) leave(work);
}

bool drain(const std::vector<std::string>& groups, std::chrono::milliseconds limit, Interrupt interrupt) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (const auto& work : Registry::instance().watched(std::numeric_limits<std::size_t>::max())) {
    if (std::ranges::find(groups, *work->context().group) == groups.end()) continue;
    while (!work->is_part()) {  // it may become one soon after its start
      const auto left = deadline - std::chrono::steady_clock::now();
      if (work->wait_for(std::clamp<std::chrono::nanoseconds>(left, std::chrono::nanoseconds(0), kLookInterval))) break;
      if (Stop::requested()) return true;
      if (left.count() <= 0) return false;
      if (interrupt != nullptr) interrupt();
    }
  }
  return true;
}

// A thread that stays in a poll, as in a step of a pass, keeps its work from that: then it is tried again for a while.
void end_works(const std::vector<std::string>& groups) noexcept {
  const auto deadline = std::chrono::steady_clock::now() + kEnding;
  auto works = Registry::instance().watched(std::numeric_limits<std::size_t>::max());
  std::erase_if(works, [&](const auto& work) {
    return work->is_part() || std::ranges::find(groups, *work->context().group) == groups.end();
  });
  do {
    std::erase_if(works, [](const auto& work) { return ended_with_group(*work) || work->completed(); });
  } while (!works.empty() && std::chrono::steady_clock::now() < deadline);
}

// Blocking calls of other groups wait for operations that passes hold, unless these have been abandoned.
void abort(Group& group) noexcept {
  group.give_up();
  for (const auto& work : Registry::instance().watched(std::numeric_limits<std::size_t>::max())) {
    if (aborted(*work)) work->expire(ErrorCode::Backend, aborted_text(*work));
  }
}

}  // namespace mcr
