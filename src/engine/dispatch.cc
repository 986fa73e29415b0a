// SPDX-License-Identifier: Apache-2.0
#include "engine/dispatch.h"

#include <utility>

#include "algorithms/emulate.h"
#include "algorithms/stripe.h"
#include "base/pool.h"
#include "choose/decision.h"
#include "codecs/codec.h"
#include "engine/executor.h"
#include "engine/flatten.h"
#include "engine/pass.h"
#include "engine/staging.h"
#include "engine/stream_call.h"
#include "engine/validate.h"
#include "engine/wait.h"
#include "observe/activity.h"
#include "observe/position.h"
#include "observe/profile.h"
#include "observe/recorder.h"
#include "observe/stop.h"

namespace mcr {

namespace {

void release(CallerLock* lock) {
  if (lock != nullptr) lock->release();
}

bool empty(const Call& call) {
  // Both of these are issued: receives from any rank, which must report a rank, and vectored calls, which may be empty
  // on this rank only.
  return !call.vectored && call.in.count == 0 && call.out.count == 0 && call.op != Op::barrier &&
         !row(call.op).is(kPeer);
}

void check_device(Device expected, Device got) {
  if (got == expected) return;
  throw Error(ErrorCode::InvalidArgument,
              "expected tensors on the group's device, cuda:" + std::to_string(expected.index) +
                  ", got cuda:" + std::to_string(got.index));
}

void check_tag(int largest, int tag) {
  if (tag <= largest) return;
  throw Error(ErrorCode::InvalidArgument,
              "tag: expected 0 to " + std::to_string(largest) + ", got " + std::to_string(tag));
}

// The candidate that the call names, or the only backend; null: not chosen yet.
const std::string* candidate_name(const Passage& passage) {
  return passage.candidate != nullptr ? &passage.candidate->name : passage.group.only_backend();
}

// The candidate under which ranks match a message: a backend's variants share its messages, unlike shares of a stripe.
const std::string* matched_by(const Passage& passage) {
  const auto* candidate = passage.candidate;
  return candidate != nullptr && candidate->striped == nullptr ? &candidate->backend.name : candidate_name(passage);
}

int64_t enter(Passage& passage, std::shared_ptr<const Chain>* chain) {
  const bool message = row(passage.call.op).is(kPeer);
  const auto* name = message ? matched_by(passage) : candidate_name(passage);
  const auto number = passage.group.position().enter(passage.call, name, passage.notes.bytes, chain);
  if (number == Position::kClosed) throw refusal(passage, destroyed_group());
  return number;
}

// Prepares every call, before any pass sees it. False: there is nothing to do. True: the call is inside its group, and
// `*chain`, if `chain` is not null, is its chain of passes; null if the group has none.
bool admit(Passage& passage, std::shared_ptr<const Chain>* chain = nullptr) {
  auto& [group, candidate, call, extras, asynchronous, interrupt, notes] = passage;
  try {
    Stop::check();
    if (const auto* lost = group.position().lost()) [[unlikely]]
      throw Error(ErrorCode::PeerLost, *lost);
    if (group.closed()) throw destroyed_group();
    flatten(call, extras);
    validate(call, extras, group.rank(), group.size());
    if (empty(call) && candidate == nullptr && group.candidates().empty()) throw no_backend();
  } catch (const Error& error) {
    throw refusal(passage, error);
  }
  if (call.timeout.count() == 0) call.timeout = group.spec().timeout;
  if (empty(call)) return false;
  call.asynchronous = asynchronous && !call.any_form;
  notes.bytes = message_bytes(call, group.size());
  notes.seq = enter(passage, chain);
  return true;
}

Activity::What activity_of(const Passage& passage) {
  const auto* notes = &passage.notes;
  while (notes->whole != nullptr) notes = notes->whole;
  return {.label = &passage.group.position().label(),
          .backend = candidate_name(passage),
          .seq = notes->seq,
          .bytes = notes->bytes,
          .limit = passage.call.timeout,
          .op = passage.call.op};
}

// Gives back the number of a call that has failed before anything was sent, perhaps only on this rank.
void withdraw(Position& position, const Passage& passage) {
  if (row(passage.call.op).is(kPeer)) {
    position.withdraw_message(passage.notes.seq);
  } else {
    position.withdraw(passage.notes.seq);
  }
}

// Runs an admitted call.
template <class Body>
auto counted(Passage& passage, const Body& body) {
  try {
    return body();
  } catch (...) {
    passage.extras.sent = passage.notes.sent;
    if (!passage.notes.sent) withdraw(passage.group.position(), passage);
    throw;
  }
}

std::shared_ptr<Work> make_work(Passage& passage, Requests requests, std::shared_ptr<StreamPoint> point = nullptr,
                                bool brief = false) {
  auto& [group, candidate, call, extras, asynchronous, interrupt, notes] = passage;
  if (extras.keep != nullptr) extras.kept = extras.keep(extras.keeper);
  auto& chosen = candidate == nullptr ? group.candidates().front() : *candidate;
  auto made = make_pooled<Work>(Work::Context{call.op, &group.position().label(), &chosen.name,
                                              &chosen.backend.progress, call.timeout, notes.seq, notes.bytes, brief},
                                std::move(extras), chosen.communicator);
  made->attach(std::move(requests));
  made->set_point(std::move(point));
  return made;
}

// A null request is none.
Requests listed(std::unique_ptr<Request> request) {
  Requests requests;
  if (request != nullptr) requests.push_back(std::move(request));
  return requests;
}

std::shared_ptr<Work> nothing_to_do(Passage& passage) {
  const auto inside = stay_in(passage.group, passage);
  auto work = make_work(passage, {});
  work->begin();
  return work;
}

// By its own progress, as an abort may have ended the group and its candidates meanwhile.
void watch(std::shared_ptr<Work> work) {
  auto* progress = work->progress();
  if (progress != nullptr) progress->watch(std::move(work));
}

// While an error is in flight, which the lack of a thread must not replace. The next call looks for a thread again.
void watch_failed(std::shared_ptr<Work> work) {
  try {
    watch(std::move(work));
  } catch (const Error&) {
  }
}

// The end of the chain: chooses a backend and issues the call.
class Issue {
 public:
  explicit Issue(Passage& passage, CallerLock* lock = nullptr, bool direct = true)
      : passage_(passage), lock_(lock), timing_(direct) {}

  int run() {
    // Point-to-point calls, schedules, calls of any form and those of a pass behind `fuse` or of a pass's steps are
    // started and polled, so that other threads may use the library meanwhile.
    Lane lane(true);
    std::shared_ptr<Work> staged;
    try {
      prepare();
      if (decision_.form == Form::Stream) return run_on_stream(passage_), -1;
      if (decision_.form == Form::Staged) {
        staged = stage();
      } else if (issue_blocking(lane)) {
        return lane.source();
      }
    } catch (...) {
      fail(lane);
    }
    if (staged != nullptr) return wait_for(passage_, *staged);  // the errors of waits name the call
    const auto work = make_work(passage_, lane.take());
    release(lock_);
    try {
      const int source = wait_for(passage_, *work);
      timed();
      return source;
    } catch (...) {
      if (!work->finished()) watch_failed(work);
      throw;
    }
  }

  std::shared_ptr<Work> start() {
    Lane lane(false);
    try {
      prepare();
      if (decision_.form == Form::Stream) return enqueue();
      if (decision_.form == Form::Staged) return stage();
      issue(lane);
      auto work = make_work(passage_, lane.take(), nullptr, brief_);
      if (timing_.trial != nullptr) [[unlikely]] {
        timing_.trial->returned();
        work->on_done([trial = timing_.trial] { trial->ended(); });
        work->set_wait_time(std::move(timing_.trial));
      }
      work->begin();
      if (!work->finished()) watch(work);
      return work;
    } catch (...) {
      fail(lane);
    }
  }

 private:
  std::shared_ptr<Work> enqueue() {
    auto [request, point] = start_on_stream(passage_);
    auto work = make_work(passage_, listed(std::move(request)), std::move(point));
    // On a device the operation cannot be complete yet, and asking costs as much as enqueuing it did.
    if (passage_.call.device.type == DeviceType::CPU || work->point() == nullptr || work->point()->captured())
      work->poll();
    if (!work->finished()) watch(work);
    return work;
  }

  std::shared_ptr<Work> stage() {
    auto* staging = passage_.group.staging();
    if (staging != nullptr) return staging->start(passage_, decision_.direct);
    throw Error(ErrorCode::Unsupported,
                "expected tensors on cpu: the group was made without a device to copy from, got tensors on " +
                    std::string(name(passage_.call.device.type)));
  }

  // The end of a blocking call.
  void timed() {
    timing_.stopwatch.stop();
    if (timing_.trial == nullptr) [[likely]]
      return;
    timing_.trial->returned();
    timing_.trial->waited({});
  }

  Candidate& choose() {
    auto& [group, candidate, call, extras, asynchronous, interrupt, notes] = passage_;
    const auto bytes = timing_.direct ? notes.bytes : message_bytes(call, group.size());
    for (;;) {
      if (auto* chosen = group.choose(call, bytes, timing_)) [[likely]]
        return *chosen;
      release(lock_);
      await_trials();
    }
  }

  void await_trials() {
    auto& group = passage_.group;
    const auto limit = passage_.call.timeout;
    const Activity activity(activity_of(passage_));
    const Activity::Polling polling;
    const auto begin = std::chrono::steady_clock::now();
    group.selector().await_trials(passage_.call, [&] {
      check_wait(group.position(), passage_.interrupt);
      if (std::chrono::steady_clock::now() - begin < limit) return;
      throw Error(ErrorCode::Timeout, "timed out: the ranks have not agreed on a candidate within the timeout of " +
                                          std::to_string(limit.count()) + " ms");
    });
  }

  void prepare() {
    auto& [group, candidate, call, extras, asynchronous, interrupt, notes] = passage_;
    if (call.coding != nullptr && (call.coding->codec != nullptr || call.coding->automatic)) {
      throw Error(ErrorCode::InvalidArgument, "codec '" + call.coding->text +
                                                  "': expected the pass \"compress\" in the group's chain, which " +
                                                  "mcr_dl.set_passes([\"compress\"]) puts there");
    }
    if (candidate == nullptr) candidate = &choose();
    call.variant = candidate->variant;
    auto& communicator = *candidate->communicator;
    brief_ = communicator.brief(call);
    if (!brief_) release(lock_);
    if (row(call.op).is(kPeer)) check_tag(communicator.largest_tag(), call.tag);
    if (candidate->streams && row(call.op).extent == Extent::None) call.device = group.device(*candidate->streams);
    if (call.in.data != nullptr && !communicator.takes_in_place(call)) separate(call, extras);
    if (call.vectored && communicator.packed()) pack(call, extras);
    decision_ = Decision::of(communicator, call);
    if (decision_.form != Form::Native) {
      brief_ = false;
      release(lock_);
    }
    if (decision_.form == Form::Stream) {
      check_device(group.device(*candidate->streams), call.device);
      decision_.reduction.prepare(call, extras, group.rank());
    }
    if (decision_.form == Form::Unsupported) {
      const bool reduces = row(call.op).is(kReduces);
      throw Error(ErrorCode::Unsupported, "no native form " +
                                              (reduces ? "of " + std::string(name(call.red)) + " " : std::string()) +
                                              "for dtype " + std::string(row(call.dtype).name) + " on device " +
                                              std::string(name(call.device.type)) + ", and no fallback");
    }
    span_ = Profiler::span(call.op, candidate->name);
  }

  // True: the call is complete.
  bool issue_blocking(Lane& lane) {
    if (polled()) lane = Lane(false);
    if (lane.blocking() && Executor::any() && passage_.candidate->communicator->excludes_threads()) [[unlikely]] {
      const Activity::Polling polling;
      Executor::finish(passage_.group.position(), passage_.call.timeout, passage_.interrupt);
    }
    issue(lane);
    if (!lane.blocking() || lane.pending()) return false;
    passage_.extras.conclude();
    timed();
    return true;
  }

  bool polled() const {
    const auto& call = passage_.call;
    return decision_.form == Form::Emulated || Position::detail() || passage_.candidate->always_starts ||
           ((call.any_form || row(call.op).is(kPeer)) && !passage_.candidate->communicator->forms_match()) ||
           Executor::driving();
  }

  // Adds the last steps to the extras in the order in which they must run: combine, finish the reduction, copy to the
  // outputs.
  void issue(Lane& lane) {
    auto& [group, candidate, call, extras, asynchronous, interrupt, notes] = passage_;
    auto& communicator = *candidate->communicator;
    decision_.reduction.prepare(call, extras, group.rank());
    mark_sent(notes);
    try {
      if (decision_.form == Form::Emulated) {
        const auto schedule = Schedule::make();
        emulate(call, group.rank(), group.size(), *schedule);
        begin(schedule, lane, [&](uint8_t) -> Communicator& { return communicator; });
      } else if (candidate->striped == nullptr || !issue_striped(lane)) [[likely]] {
        communicator.issue(call, lane);
      }
    } catch (...) {
      if (!lane.pending()) decision_.reduction.undo(call, group.rank());
      rethrow_as_error();
    }
    decision_.reduction.finish(call, extras, group.rank(), group.size());
    unflatten(call, extras);
  }

  // False: the first part gets the whole call.
  bool issue_striped(Lane& lane) {
    const auto stripes = passage_.group.selector().stripes(*passage_.candidate, passage_.call);
    if (!stripes) return false;
    const auto schedule = Schedule::make();
    stripe(passage_.call, passage_.group.size(), *stripes, *schedule);
    const auto& parts = passage_.candidate->striped->parts();
    begin(schedule, lane, [&](uint8_t part) -> Communicator& { return *parts[part].communicator; });
    return true;
  }

  template <class Parts>  // the communicator of each part
  static void begin(const std::shared_ptr<Schedule>& schedule, Lane& lane, const Parts& parts) {
    const auto run = make_pooled<Run>(schedule);
    lane.track(request_of(nullptr, run));
    try {
      run->begin([&](const Task& task, Requests& requests) { issue_on(parts(task.part), task.call, requests); });
    } catch (...) {
      if (run->finished()) static_cast<void>(lane.take());  // the first part was refused: nothing is under way
      throw;
    }
  }

  // Call in a catch block. Requests that were started before the error stay alive until they end: the library still
  // uses their memory.
  [[noreturn]] void fail(Lane& lane) {
    if (lane.pending()) watch_failed(make_work(passage_, lane.take()));
    if (!passage_.notes.sent) passage_.group.selector().withdraw(timing_);
    try {
      throw;
    } catch (const Error& error) {
      throw refusal(passage_, error);
    }
  }

  Passage& passage_;
  CallerLock* const lock_;
  Timing timing_;
  bool brief_ = false;
  Decision decision_;
  std::unique_ptr<Profiler::Span> span_;
};

}  // namespace

std::shared_ptr<Work> hold(Passage& passage, std::unique_ptr<Request> request, std::shared_ptr<StreamPoint> point) {
  auto requests = listed(std::move(request));
  mark_sent(passage.notes);
  unflatten(passage.call, passage.extras);
  auto work = make_work(passage, std::move(requests), std::move(point));
  watch(work);
  return work;
}

// Not always within the caller's run() or start().
Outcome Next::operator()(Passage& passage) const {
  const auto inside = stay_in(passage.group, passage);
  const bool last = from_ >= chain_->size();
  const auto go_on = [&] { return (*chain_)[from_]->handle(passage, Next(chain_, from_ + 1)); };
  if (passage.asynchronous) return last ? Outcome{Issue(passage, nullptr, false).start()} : go_on();
  const Activity activity(activity_of(passage));  // a pass of the program has paused the one of run()
  return last ? Outcome{nullptr, Issue(passage, nullptr, false).run()} : go_on();
}

int run(Group& group, Candidate* candidate, Call& call, Extras& extras, Interrupt interrupt, CallerLock* lock) {
  Passage passage{group, candidate, call, extras, false, interrupt};
  std::shared_ptr<const Chain> chain;
  if (!admit(passage, &chain)) return -1;
  const Group::Inside inside(group, std::adopt_lock);
  if (chain != nullptr) release(lock);
  const Activity activity(activity_of(passage));
  return counted(passage, [&] { return chain == nullptr ? Issue(passage, lock).run() : Next(chain)(passage).source; });
}

std::shared_ptr<Work> start(Group& group, Candidate* candidate, Call& call, Extras& extras, Interrupt interrupt,
                            CallerLock* lock) {
  Passage passage{group, candidate, call, extras, true, interrupt};
  std::shared_ptr<const Chain> chain;
  if (!admit(passage, &chain)) return nothing_to_do(passage);
  const Group::Inside inside(group, std::adopt_lock);
  if (chain != nullptr) release(lock);
  return counted(passage, [&] { return chain == nullptr ? Issue(passage, lock).start() : Next(chain)(passage).work; });
}

std::shared_ptr<Work> start_through(const std::shared_ptr<const Chain>& chain, Group& group, Candidate* candidate,
                                    Call& call, Extras& extras) {
  Passage passage{group, candidate, call, extras, true};
  if (!admit(passage)) return nothing_to_do(passage);
  const Group::Inside inside(group, std::adopt_lock);
  return counted(passage,
                 [&] { return chain == nullptr ? Issue(passage, nullptr, false).start() : Next(chain)(passage).work; });
}

}  // namespace mcr
