// SPDX-License-Identifier: Apache-2.0
#include "dispatch.h"

#include <algorithm>
#include <utility>

#include "emulate.h"
#include "flatten.h"
#include "reduce.h"
#include "validate.h"

namespace mcr {

namespace {

// Tells the backend's progress thread that somebody polls.
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

// How often a wait looks up from the operation: Ctrl-C is noticed within this time.
constexpr std::chrono::milliseconds kSlice{100};

enum class Route { Nothing, Native, Emulated, Unsupported };

bool empty(const Call& call) {
  // Receives from any rank must report one, and vectored calls may be empty on this rank alone: both are issued.
  return !call.vectored && call.in.count == 0 && call.out.count == 0 && call.op != Op::barrier &&
         !row(call.op).is(kPeer);
}

// What the reductions mean on bool is the same for all backends: logical or, and.
void lower_bool(Call& call) {
  if (call.dtype != DType::Bool) return;
  if (call.red == RedOp::SUM) call.red = RedOp::MAX;
  if (call.red == RedOp::PRODUCT) call.red = RedOp::MIN;
}

// Decides how the call is done, from values that are equal on all ranks: op, dtype, reduction, vectored, device and
// the communicator's tables. AVG becomes SUM, with `average` set, where the backend does not have it.
Route route(const Communicator& communicator, Call& call, bool& average) {
  if (communicator.supports(call)) return Route::Native;
  if (call.red == RedOp::AVG && row(call.op).is(kReduces)) {
    call.red = RedOp::SUM;
    average = true;
    if (communicator.supports(call)) return Route::Native;
  }
  const bool host = call.device.type == DeviceType::CPU;
  return row(call.op).fallback == Fallback::Exchange && host ? Route::Emulated : Route::Unsupported;
}

// A call on its way: `lane` holds what was started when issue() returns.
struct Issue {
  Group& group;
  Group::Slot*& slot;
  Call& call;
  Plan& plan;
  Stopwatch* stopwatch = nullptr;  // of a blocking call

  Route prepare(bool& average) {
    if (group.closed()) throw Error(ErrorCode::NotInitialized, "the group has been destroyed");
    flatten(call, plan);
    validate(call, plan, group.rank(), group.size());
    if (call.timeout.count() == 0) call.timeout = group.spec().timeout;
    if (empty(call)) return Route::Nothing;
    lower_bool(call);
    if (slot == nullptr) slot = stopwatch == nullptr ? &group.choose(call) : &group.choose(call, *stopwatch);
    call.variant = slot->variant;
    separate(call, plan);
    if (call.vectored && slot->communicator->packed()) pack(call, plan);
    const Route chosen = route(*slot->communicator, call, average);
    if (chosen == Route::Unsupported) {
      throw Error(ErrorCode::Unsupported, "no native form for dtype " + std::string(row(call.dtype).name) +
                                              " on device " + std::string(name(call.device.type)) +
                                              ", and no fallback");
    }
    return chosen;
  }

  // Adds the last steps to the plan in the order in which they must run: combine, average, copy out.
  void issue(Route route, bool average, Lane& lane) {
    auto& communicator = *slot->communicator;
    if (route == Route::Native) communicator.issue(call, lane);
    if (route == Route::Emulated) emulate(call, plan, communicator, group.rank(), group.size(), lane);
    if (average && (call.op != Op::reduce || call.root == group.rank())) {
      plan.finish.emplace_back(
          [out = call.out, dtype = call.dtype, size = group.size()] { divide(out.data, out.count, dtype, size); });
    }
    unflatten(call, plan);
  }

  // What was started before the error stays alive until it ends: the library still uses its memory.
  [[noreturn]] void fail(const Error& error, Lane& lane) {
    if (lane.pending()) watch(work(lane));
    const auto backend = slot == nullptr ? group.any_backend() : slot->name;
    throw Error(error.code(), describe(std::string(backend), call.op, *group.label()) + ": " + error.what());
  }

  void watch(std::shared_ptr<Work> started) const { slot->backend.progress.watch(std::move(started)); }

  std::shared_ptr<Work> work(Lane& lane) {
    if (plan.keep) plan.kept = plan.keep();
    auto& chosen = slot == nullptr ? group.slots().front() : *slot;
    auto made = std::make_shared<Work>(Work::Context{call.op, group.label(), &chosen.name, chosen.communicator,
                                                     &chosen.backend.progress, call.timeout},
                                       std::move(plan));
    made->attach(lane.take());
    return made;
  }
};

}  // namespace

int run(Group& group, Group::Slot* slot, Call& call, Plan& plan, Interrupt interrupt) {
  Stopwatch stopwatch;
  Issue issue{group, slot, call, plan, &stopwatch};
  bool average = false;
  Route route = Route::Nothing;
  // Point-to-point calls and emulations are started and polled, so that other threads may use the library meanwhile.
  Lane lane(true);
  try {
    route = issue.prepare(average);
    if (route == Route::Nothing) return -1;
    const bool message = row(call.op).is(kPeer) && !issue.slot->communicator->inline_messages();
    if (route == Route::Emulated || message) lane = Lane(false);
    issue.issue(route, average, lane);
    if (lane.blocking()) {
      for (auto& step : plan.finish) step();
      stopwatch.stop();
      return lane.source();
    }
  } catch (const Error& error) {
    issue.fail(error, lane);
  }
  auto work = issue.work(lane);
  try {
    wait(*work, call.timeout, interrupt);
  } catch (...) {
    if (!work->settled()) issue.watch(work);
    throw;
  }
  return work->source();
}

std::shared_ptr<Work> start(Group& group, Group::Slot* slot, Call& call, Plan& plan) {
  Issue issue{group, slot, call, plan};
  Lane lane(false);
  try {
    bool average = false;
    const Route route = issue.prepare(average);
    if (route != Route::Nothing) issue.issue(route, average, lane);
  } catch (const Error& error) {
    issue.fail(error, lane);
  }
  auto work = issue.work(lane);
  work->poll();
  if (!work->settled()) issue.watch(work);
  return work;
}

std::string_view how(const Communicator& communicator, Call call) {
  const OpRow& op = row(call.op);
  if ((op.is(kReduces) && !defined(call.dtype, call.red)) || (call.vectored && !op.is(kVectored))) return "-";
  lower_bool(call);
  bool average = false;
  switch (route(communicator, call, average)) {
    case Route::Native:
      return "native";
    case Route::Emulated:
      return "emulated";
    default:
      return "-";
  }
}

void wait(Work& work, std::chrono::milliseconds limit, Interrupt interrupt) {
  if (work.poll()) return work.rethrow();
  const Waiting waiting(work.progress());
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (work.wait_for(std::clamp(left, std::chrono::milliseconds(0), kSlice))) break;
    if (left.count() <= 0) {
      throw Error(ErrorCode::Timeout, work.what() + ": still running after " + std::to_string(limit.count()) + " ms");
    }
    if (interrupt != nullptr) interrupt();
  }
  work.rethrow();
}

}  // namespace mcr
