// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse/stream.h"

#include <algorithm>
#include <string>
#include <utility>

#include "algorithms/fuse.h"
#include "base/digest.h"
#include "base/pool.h"
#include "engine/dispatch.h"
#include "engine/stage.h"

namespace mcr {

namespace {

// Flushes have memory of the buffer's size, so that the next one can use it again; beyond this, of their own size.
constexpr int64_t kReused = int64_t{64} << 20;

// Calls of equal kinds can be done by one collective. Equal on all ranks, as all inputs are.
FuseKind kind_of(const Call& call, const Candidate& candidate, int64_t pass) {
  int64_t number = call.root;
  number = (number << 8) | static_cast<int64_t>(call.op);
  number = (number << 8) | static_cast<int64_t>(call.dtype);
  number = (number << 8) | static_cast<int64_t>(call.red);
  return {call.priority, pass, candidate.backend.name, (number << 8) | candidate.variant};
}

// The calls are no longer held: `carrier` does them, or it is null and they have failed.
template <class Parts>
void release(const Parts& parts, const std::shared_ptr<Work>& carrier, const std::optional<Error>& failure) {
  if (carrier != nullptr) carrier->set_part();  // until all calls have it: the first ones may have been abandoned
  for (const auto& part : parts) {
    part->candidate.communicator = nullptr;  // the program may keep the call's Work, which keeps the part
    if (carrier == nullptr) {
      part->fail(*failure);
    } else {
      part->fulfil(carrier);
    }
  }
  if (carrier != nullptr) carrier->abandon_part();
}

}  // namespace

FusePart::FusePart(const Call& held, const Candidate& of, const FuseLimits& its, const FuseRest& rest,
                   std::shared_ptr<void> owner)
    : call(held),
      candidate(of),
      limits(its),
      kind(kind_of(held, of, rest.pass)),
      chain(rest.chain),
      memory(std::move(owner)) {}

std::shared_ptr<FusePart> FuseStream::join(const Call& call, const Candidate& candidate, const FuseLimits& limits,
                                           const FuseRest& rest, std::shared_ptr<void> memory) {
  const auto part = std::make_shared<FusePart>(call, candidate, limits, rest, std::move(memory));
  const auto bytes = larger_side_bytes(call);
  std::unique_lock lock(mutex_);
  if (!broken_ && bytes_[part->kind] + bytes > limits.buffer_bytes) {
    wanted_ = made();
    lock.unlock();
    drive();
    lock.lock();
  }
  if (broken_) throw Error(*broken_);
  held_.push_back(part);
  until_ = std::min(until_, part->until);
  part->number = made();
  auto& total = bytes_[part->kind];
  total += bytes;
  if (total >= limits.buffer_bytes) wanted_ = part->number;
  ++statistics_.calls;
  std::shared_ptr<Run> begun;
  const bool reclaimed = round_ != nullptr && round_->reclaim();
  if (round_ == nullptr) begun = round_ = make_round();
  lock.unlock();
  if (reclaimed) executor_->recount();
  if (begun != nullptr) executor_->submit(std::move(begun), nullptr);
  drive();
  return part;
}

void FuseStream::drive() {
  executor_->drive();
  std::shared_ptr<Run> failed;
  {
    const std::lock_guard lock(mutex_);
    if (round_ == nullptr || !round_->issued()) return;
    failed = round_;  // a flush that succeeds begins the next round, or leaves none
  }
  // Until break_off() the round stays in its place: otherwise a call of another thread would begin one after it.
  try {
    failed->poll();
  } catch (const Error& error) {
    break_off(error);
  }
}

void FuseStream::expedite(const FusePart& part) {
  if (part.given()) return;
  {
    const std::lock_guard lock(mutex_);
    wanted_ = std::max(wanted_, part.number);
  }
  drive();
}

void FuseStream::abandoned() {
  {
    const std::lock_guard lock(mutex_);
    if (round_ == nullptr || flushing_ || !all_abandoned() || !round_->abandon()) return;
  }
  executor_->recount();
}

void FuseStream::expedite() {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = made();
  }
  drive();
}

bool FuseStream::synchronize(std::chrono::nanoseconds limit) {
  const bool flushed = executor_->synchronize(limit);
  drive();  // fails the held calls if the last round has failed
  return flushed;
}

FuseStatistics FuseStream::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

bool FuseStream::broken() const {
  const std::lock_guard lock(mutex_);
  return broken_.has_value();
}

bool FuseStream::renew() {
  const std::lock_guard lock(mutex_);
  if (broken_) return false;
  statistics_ = {};
  if (held_.empty()) flushed_ = wanted_ = 0;
  return true;
}

FuseRest FuseStream::add_pass() {
  const std::lock_guard lock(mutex_);
  return {shadow_->chain(), ++passes_};
}

// ---- rounds

bool FuseStream::due() const {
  if (held_.empty() || broken_) return false;
  return wanted_ > flushed_ || Clock::now() >= until_;
}

bool FuseStream::all_abandoned() const {
  return std::ranges::all_of(held_, [](const auto& part) { return part->abandoned(); });
}

// For libraries that have a time limit of their own: it must not end the round before the last held call ends.
std::chrono::milliseconds FuseStream::longest_timeout() const {
  const std::lock_guard lock(mutex_);
  std::chrono::milliseconds longest{0};
  for (const auto& part : held_) longest = std::max(longest, part->call.timeout);
  return longest;
}

// Sets the number of held calls that this rank proposes to flush. False: no flush is due.
bool FuseStream::propose(bool expedited, int64_t& number) {
  const std::lock_guard lock(mutex_);
  if (expedited) wanted_ = made();
  if (!due()) return false;
  number = static_cast<int64_t>(held_.size());
  return true;
}

// The second Issue stands for all calls of the flush.
std::shared_ptr<Run> FuseStream::make_round() {
  const auto schedule = Schedule::make();
  auto& number = schedule->make_object<int64_t>();
  // The executor may outlive the stream, and must not keep it alive: it would keep the group's communicators.
  const auto weak = weak_from_this();
  const auto due = schedule->wait([weak, &number](bool expedited) {
    const auto self = weak.lock();
    return self == nullptr || self->propose(expedited, number);
  });
  Schedule::Ids agreed = {due};
  if (shadow_->size() != 1) {
    Call round;
    round.op = Op::all_reduce;
    round.dtype = DType::Long;
    round.red = RedOp::MIN;
    round.out = {&number, 1};
    agreed = {schedule->issue(round, {due})};
  }
  const auto flushes = schedule->issue({}, agreed);
  // Rounds use the backend without a variant, as ranks may hold calls of different variants. The first held call has
  // one number on all ranks, and so one backend.
  const Candidate& first = held_.front()->candidate;
  const Candidate candidate{first.backend, first.communicator, first.backend.name, 0, first.streams};
  const auto later = [weak, candidate, &number, memory = std::weak_ptr(schedule), flush = &schedule->tasks()[flushes]](
                         const Task& task, Requests& requests) {
    const auto self = weak.lock();
    if (self == nullptr) throw destroyed_group();
    if (&task == flush) return self->flush(number);
    Candidate used = candidate;
    Call round = task.call;
    round.timeout = self->longest_timeout();
    Extras extras;
    extras.owned.push_back(memory.lock());
    // The round is part of the held calls and does not end before them: the ranks could not agree any more. Once all
    // of them have ended, the run is abandoned, and blocking calls of all groups do not wait for its late Issues.
    requests.push_back(request_of(start_through(nullptr, *self->shadow_, &used, round, extras)));
  };
  auto run = make_pooled<Run>(schedule, later);
  if (all_abandoned()) run->abandon();
  return run;
}

// ---- the flush

void FuseStream::flush(int64_t agreed) {
  std::vector<Parts> buffers;
  std::optional<Error> local;
  {
    const std::lock_guard lock(mutex_);
    if (agreed < 1 || std::cmp_greater(agreed, held_.size())) {  // the round has met another call
      local.emplace(ErrorCode::Backend, "expected the ranks to agree on 1 to " + std::to_string(held_.size()) +
                                            " held calls, got " + std::to_string(agreed));
    } else {
      buffers = take(agreed);
      flushing_ = true;
    }
  }
  for (const auto& parts : buffers) {
    if (!local) {
      local = send(parts);
    } else {
      release(parts, nullptr, local);
    }
  }
  if (local) return break_off(*local);
  std::shared_ptr<Run> next;
  {
    const std::lock_guard lock(mutex_);
    if (!held_.empty()) next = make_round();
    round_ = next;
    flushing_ = false;
  }
  if (next != nullptr) executor_->submit(std::move(next), nullptr);
}

// Removes the first `agreed` calls from held_ and returns their buffers. Buffers fill up in the order of the calls, one
// per kind. They go by priority; within a priority full buffers come first, then the rest in the order of their
// kinds. Changes nothing if it throws.
std::vector<FuseStream::Parts> FuseStream::take(int64_t agreed) {
  const auto end = held_.begin() + agreed;
  std::vector<Parts> full;
  std::map<FuseKind, Parts> open;
  std::map<FuseKind, int64_t> filled;
  for (auto part = held_.begin(); part != end; ++part) {
    const auto kind = (*part)->kind;
    const int64_t bytes = larger_side_bytes((*part)->call);
    if (filled[kind] + bytes > (*part)->limits.buffer_bytes && !open[kind].empty()) {
      full.push_back(std::exchange(open[kind], {}));
      filled[kind] = 0;
    }
    filled[kind] += bytes;
    open[kind].push_back(*part);
  }
  for (auto& [kind, parts] : open) full.push_back(std::move(parts));
  std::ranges::stable_sort(full, {}, [](const Parts& parts) { return parts.front()->kind.priority; });
  for (const auto& parts : full) {
    ++statistics_.flushes;
    for (const auto& part : parts) {
      statistics_.bytes += larger_side_bytes(part->call);
      bytes_[part->kind] -= larger_side_bytes(part->call);
    }
    std::erase_if(bytes_, [](const auto& each) { return each.second == 0; });
    for (const int64_t value : {parts.front()->kind.number, parts.back()->number}) {
      statistics_.digest = digest(statistics_.digest, static_cast<uint64_t>(value));
    }
  }
  held_.erase(held_.begin(), end);
  until_ = Clock::time_point::max();
  for (const auto& part : held_) until_ = std::min(until_, part->until);
  flushed_ += agreed;
  return full;
}

// On an error, all calls in the buffer get it. Returns it if only this rank has it: then the other ranks have issued
// calls that this rank has not, and no call may follow on these communicators.
std::optional<Error> FuseStream::send(const Parts& parts) {
  std::shared_ptr<Work> carrier;
  std::optional<Error> failure, local;
  try {
    carrier = carry(parts);
  } catch (const Error& error) {
    failure = error;
    if (error.cause() != nullptr) local = error;  // raised by a user's function
  } catch (...) {
    failure = local = current_error();
  }
  release(parts, carrier, failure);
  return local;
}

std::shared_ptr<Work> FuseStream::carry(const Parts& parts) {
  Candidate candidate = parts.front()->candidate;
  Call first = parts.front()->call;
  Extras extras;
  if (parts.size() == 1) {
    extras.owned.push_back(parts.front()->memory);
    return start_through(parts.front()->chain, *shadow_, &candidate, first, extras);
  }
  std::vector<Call> calls;
  for (const auto& part : parts) calls.push_back(part->call);
  const auto schedule = Schedule::make();
  fuse(calls, shadow_->rank(), shadow_->size(), *schedule, std::min(parts.front()->limits.buffer_bytes, kReused));
  const auto run = make_pooled<Run>(schedule);
  run->begin([&](const Task& task, Requests& requests) {
    Candidate used = candidate;
    Call step = task.call;
    Extras own;
    own.owned.push_back(schedule);
    requests.push_back(request_of(start_through(parts.front()->chain, *shadow_, &used, step, own)));
  });
  Passage passage{*shadow_, &candidate, first, extras, true};
  auto work = hold(passage, request_of(nullptr, run));
  work->poll();
  return work;
}

// The ranks can no longer agree on flushes: all held calls fail, and later ones are refused.
void FuseStream::break_off(const Error& error) {
  std::deque<std::shared_ptr<FusePart>> held;  // released and destroyed without the lock
  std::shared_ptr<Run> round;
  {
    const std::lock_guard lock(mutex_);
    round.swap(round_);
    broken_ = Error(error.code(), "the ranks cannot agree on fused calls any more (" + std::string(error.what()) +
                                      "); set the group's passes again on all its ranks, or go on with a new group");
    held.swap(held_);
    bytes_.clear();
  }
  release(held, nullptr, error);
}

}  // namespace mcr
