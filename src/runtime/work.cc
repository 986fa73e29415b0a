// SPDX-License-Identifier: Apache-2.0
#include "runtime/work.h"

#include <memory>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/spin_lock.h"
#include "observe/recorder.h"
#include "observe/stop.h"
#include "runtime/progress.h"

namespace mcr {

namespace {

// Polls before a waiting thread yields its core, and between yields: short enough that ranks sharing a core, and the
// libraries' threads, do not wait for the end of a time slice. A yield costs less than these polls.
constexpr int kPollsBeforeYield = 16;
constexpr std::chrono::milliseconds kPatience{50};  // of a thread that must not stay in another one's poll

int64_t stamp_of(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// Ignores errors of a request's optional actions during a wait: poll() reports them.
template <class Action>
bool attempt(Action action) noexcept {
  try {
    return action();
  } catch (...) {
    return false;
  }
}

}  // namespace

std::string describe(const std::string& backend, std::string_view function, const std::string& group) {
  return backend + "." + std::string(function) + " (" + group + ")";
}

bool block_on(const Requests& requests, std::chrono::nanoseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (const auto& request : requests) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero()) return true;
    if (!request->block(left)) return false;
  }
  return !requests.empty();
}

std::string Work::what() const { return describe(*context_.backend, row(context_.op).name, *context_.group); }

Subject Work::subject() const { return {*context_.group, context_.seq, row(context_.op).is(kPeer)}; }

void Work::begin() noexcept {
  try {
    if (advance(context_.brief)) finish();
  } catch (...) {
    fail();
  }
}

bool Work::poll(bool brief) noexcept {
  if (finished()) return true;
  if (Stop::forked()) [[unlikely]]
    return false;
  if (busy_.test_and_set(std::memory_order_acquire)) return completed();
  std::shared_ptr<Communicator> released;  // outside the turn: its end may wait for a library's threads
  try {
    if (!finished() && advance(brief)) released = finish();
  } catch (...) {
    released = fail();
  }
  busy_.clear(std::memory_order_release);
  return completed();
}

// True once all requests have ended; the last steps have then run, unless a request failed.
bool Work::advance(bool brief) {
  {
    const BriefPolls polls(brief);  // not in the last steps and callbacks
    for (; next_ < requests_.size(); ++next_) {
      if (!requests_[next_]->poll()) return false;
    }
  }
  if (completed()) return true;
  extras_.conclude();
  complete();
  return true;
}

// The error is visible at once. The other requests are still polled, as the library still uses their memory. finished_
// is set last: readers that see it need no further checks. Returns what finish() does.
std::shared_ptr<Communicator> Work::fail() noexcept {
  if (!completed()) keep_error();
  if (next_ < requests_.size() && !requests_[next_]->lingers()) ++next_;
  return next_ == requests_.size() ? finish() : nullptr;
}

// Returns the communicator, for the caller to release: a Work that the program keeps does not keep it.
std::shared_ptr<Communicator> Work::finish() noexcept {
  auto released = std::move(communicator_);
  finished_.store(true, std::memory_order_release);
  return released;
}

void Work::keep_error() noexcept {
  const Error error = current_error();
  const auto text = what() + ": " + error.what();
  failure_ = error.cause() == nullptr ? Error(error.code(), text, subject())
                                      : Error(error.code(), text).caused_by(error.cause());
  complete();
}

void Work::complete() noexcept {
  // First: a thread that waits for the work may read its record.
  if (const auto number = take_record(); number != 0) {
    Recorder::instance().completed(number, failure_.has_value(), requests_.empty() ? -1 : requests_.front()->source());
  }
  completed_.store(true, std::memory_order_release);
  LazyVector<std::function<void()>> callbacks;
  {
    const SpinLock lock(adding_);
    std::swap(callbacks, callbacks_);
  }
  for (const auto& callback : callbacks) callback();
}

// For threads that must not stay here: a thread that polls may wait for a lock inside a library.
bool Work::take_turn() const noexcept {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (busy_.test_and_set(std::memory_order_acquire)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

bool Work::given_up() const noexcept {
  if (busy_.test_and_set(std::memory_order_acquire)) return false;
  const bool found = communicator_ != nullptr && communicator_->given_up();
  busy_.clear(std::memory_order_release);
  return found;
}

bool Work::expire(ErrorCode code, const std::string& text) noexcept {
  if (!take_turn()) return false;
  const bool running = !completed();
  if (running) {
    abandon();  // first: a thread that the error wakes may make a call that would wait
    // Without a subject: the text already says why other ranks have not come.
    failure_ = Error(code, text);
    complete();
  }
  busy_.clear(std::memory_order_release);
  return running;
}

void Work::abandon() noexcept {
  for (const auto& request : requests_) attempt([&] { return request->abandon(), true; });
}

std::string Work::behind() const {
  if (!take_turn()) return {};
  std::string found;
  for (auto next = next_; next < requests_.size() && found.empty(); ++next) found = requests_[next]->behind();
  busy_.clear(std::memory_order_release);
  return found;
}

Work::Nanoseconds Work::observed(std::chrono::steady_clock::time_point now) noexcept {
  const auto stamp = stamp_of(now);
  int64_t none = 0;
  if (first_observed_.compare_exchange_strong(none, stamp, std::memory_order_relaxed)) return Nanoseconds(0);
  return Nanoseconds(stamp - none);
}

void Work::set_waited_for(std::chrono::milliseconds limit, std::chrono::steady_clock::time_point deadline) noexcept {
  if (limit <= context_.limit) return;
  const auto stamp = stamp_of(deadline);
  auto longest = longest_wait_.load(std::memory_order_relaxed);
  while (longest < stamp && !longest_wait_.compare_exchange_weak(longest, stamp, std::memory_order_relaxed)) {
  }
}

bool Work::overdue(std::chrono::steady_clock::time_point now, Nanoseconds grace) noexcept {
  const auto age = observed(now);  // starts the clock of a new operation
  const auto limit = context_.limit;
  if (stamp_of(now - grace) <= longest_wait_.load(std::memory_order_relaxed)) return false;
  return !completed() && !is_part() && limit.count() > 0 && age - limit > grace;
}

bool Work::join() {
  auto* point = this->point();
  if (point == nullptr) return false;
  rethrow();
  if (completed() && !point->captured()) return true;
  const DeviceGuard guard(point->caller().device);
  const Stream current = DeviceRuntime::of(point->caller().device.type).current(point->caller().device);
  point->join(current);
  if (point->external_stream() && !(current == point->caller())) point->join(point->caller());
  // The memory was allocated in the order of the caller's stream, and that stream's next work now comes after the
  // operation.
  if (current == point->caller() && extras_.release != nullptr && !released_.test_and_set()) {
    extras_.release(extras_.kept.get());
  }
  return true;
}

bool Work::wait_for(Nanoseconds limit, bool point_suffices) noexcept {
  if (Stop::forked()) [[unlikely]]
    return finished();
  const auto arrived = [&] { return poll() || (point_suffices && point() != nullptr); };
  if (arrived()) return true;
  for (const auto& request : requests_) attempt([&] { return request->expedite(), true; });
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (int polls = 0; !arrived(); ++polls) {
    if (polls % kPollsBeforeYield != 0) continue;
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= Nanoseconds::zero()) return false;
    // Requests are destroyed only with the Work, so a thread may sleep on one while another thread polls.
    attempt([&] { return block_on(requests_, left); });
    if (polls > 0) std::this_thread::yield();
  }
  return true;
}

void Work::rethrow() const {
  if (const auto* at = point(); at != nullptr && at->failure()) {
    throw Error(at->failure()->code(), what() + ": " + at->failure()->what(), subject());
  }
  if (failed()) throw Error(*failure_);
}

int Work::source() const {
  return (completed() || point() != nullptr) && !requests_.empty() ? requests_.front()->source() : -1;
}

void Work::set_awaited() {
  auto* const progress = context_.progress;
  if (completed() || progress == nullptr || awaited_.test_and_set(std::memory_order_relaxed)) return;
  progress->enter_sleep();
  on_done([progress] { progress->leave_sleep(); });
}

// The flag orders this and complete(): either complete() takes the callback, or completed_ is seen here.
void Work::on_done(std::function<void()> callback) {
  if (!completed()) {
    const SpinLock lock(adding_);
    if (!completed()) return callbacks_.push_back(std::move(callback));
  }
  callback();
}

}  // namespace mcr
