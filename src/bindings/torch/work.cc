// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/work.h"

#include <ATen/core/ivalue_inl.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "bindings/python/devices.h"
#include "bindings/python/errors.h"
#include "bindings/python/gil.h"
#include "bindings/python/kept_tensors.h"
#include "bindings/python/signals.h"
#include "bindings/torch/completions.h"
#include "bindings/torch/error.h"
#include "bindings/torch/named_backend.h"
#include "engine/dispatch.h"

namespace mcr::python {

namespace {

using c10::ivalue::Future;

// For each device a stream whose next work comes after all parts there.
std::vector<c10::Stream> streams_behind(const TorchWork::Parts& parts) {
  std::map<int, std::vector<StreamPoint*>> points;
  for (const auto& part : parts) points[part->point()->stream().device.index].push_back(part->point());
  std::vector<c10::Stream> streams;
  for (const auto& [index, ends] : points) {
    Stream last = ends.front()->stream();
    const auto is_last = [&](const auto* end) { return end->stream() == last; };
    if (!std::ranges::all_of(ends, is_last)) {
      const DeviceGuard guard(last.device);
      last = DeviceRuntime::of(last.device.type).make_stream(last.device, false);
      for (auto* end : ends) end->join(last);
    }
    streams.push_back(torch_stream(last));
  }
  return streams;
}

// Waits for the end on the host; without a limit, the part's own one ends it.
void await_end(Work& part, std::chrono::milliseconds limit, std::chrono::steady_clock::time_point begin) {
  while (!part.wait_for(kLookInterval)) {
    check_signals();
    if (limit.count() > 0 && std::chrono::steady_clock::now() - begin >= limit) throw late(part, limit);
  }
  part.rethrow();
}

// The first error of the parts, or the hook's, for torch; null if there is none.
std::exception_ptr error_of(const TorchWork::Parts& parts, const HookRuns* hook_runs) {
  try {
    for_torch([&] {
      for (const auto& part : parts) part->rethrow();
      if (hook_runs != nullptr) hook_runs->rethrow();
    });
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

std::vector<at::Tensor> results_of(const TorchWork::Parts& parts) {
  std::vector<at::Tensor> results;
  for (const auto& part : parts) {
    for (auto& tensor : KeptTensors::results_of(*part)) results.push_back(std::move(tensor));
  }
  return results;
}

// torch registers the works of all calls in a context of its own, for wait_tensor(); a work that has been waited for
// must leave the registry by itself.
void unregister(c10d::Work* work) {
  if (!c10d::allow_inflight_collective_as_graph_input()) return;
  c10d::unregister_work(c10::intrusive_ptr<c10d::Work>::unsafe_reclaim_from_nonowning(work));
}

c10d::WorkResult outcome(const std::exception_ptr& error) {
  if (error == nullptr) return c10d::WorkResult::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const TorchError& known) {
    return known.error().code() == ErrorCode::Timeout ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
  } catch (...) {
    return c10d::WorkResult::UNKNOWN;
  }
}

}  // namespace

TorchWork::TorchWork(Parts parts, Context context, std::shared_ptr<HookRuns> hook_runs)
    : c10d::Work(context.rank, context.type),
      parts_(std::move(parts)),
      context_(context),
      hook_runs_(std::move(hook_runs)) {
  if (hook_runs_ != nullptr) {
    for (const auto& part : parts_) run_hook_after(*part);
  }
  if (!context.timed) return;
  clock_ = std::make_shared<Clock>();
  when_done([clock = clock_] { clock->nanoseconds = (std::chrono::steady_clock::now() - clock->start).count(); });
}

// Now, or on a thread for callbacks: a hook may wait for another operation, so the thread that completes operations
// must not run it.
void TorchWork::run_hook_after(mcr::Work& part) {
  const auto run = [runs = hook_runs_, call = part.what()] { runs->run(call); };
  if (part.completed()) return run();
  auto& completions = Completions::instance();
  part.on_done([&completions, run] { completions.run(run); });
}

// Runs the action once, when the last part is complete.
void TorchWork::when_done(std::function<void()> action) {
  auto left = std::make_shared<std::atomic<std::size_t>>(parts_.size() + 1);
  auto count = [left, action = std::move(action)] {
    if (left->fetch_sub(1) == 1) action();
  };
  for (const auto& part : parts_) part->on_done(count);
  count();
}

bool TorchWork::isCompleted() {
  const UnlockedIfHeld guard;  // a poll may wait for a library's lock
  return std::ranges::all_of(parts_, [](const auto& part) { return part->poll(); }) &&
         (hook_runs_ == nullptr || hook_runs_->over());
}

bool TorchWork::isSuccess() const {
  return std::ranges::all_of(parts_, [](const auto& part) { return part->completed() && !part->failed(); }) &&
         (hook_runs_ == nullptr || (hook_runs_->over() && !hook_runs_->failed()));
}

std::exception_ptr TorchWork::exception() const { return error_of(parts_, hook_runs_.get()); }

int TorchWork::sourceRank() const { return parts_.empty() ? -1 : parts_.front()->source(); }

std::vector<at::Tensor> TorchWork::result() { return results_of(parts_); }

void TorchWork::synchronize() { wait(kNoTimeout); }

bool TorchWork::wait(std::chrono::milliseconds timeout) {
  const CalledByTorch guard;
  timeout = bounded(timeout);
  const bool limited = timeout.count() > 0;
  const auto begin = std::chrono::steady_clock::now();
  if (limited) {
    for (const auto& part : parts_) part->set_waited_for(timeout, begin + timeout);  // they are waited for in turn
  }
  for_torch([&] {
    for (const auto& part : parts_) {
      if (limited) {
        mcr::wait(*part, timeout, check_signals, nullptr, begin);
      } else {
        mcr::wait(*part, part->limit(), check_signals);
      }
      if (limited || context_.blocks_host) await_end(*part, timeout, begin);
    }
    if (hook_runs_ == nullptr) return;
    const auto deadline = limited ? std::optional(begin + timeout) : std::nullopt;
    const bool waits = context_.blocks_host || !on_streams();
    if (waits && !hook_runs_->wait(check_signals, deadline)) {
      throw Error(ErrorCode::Timeout, parts_.front()->what() +
                                          ": timed out: the completion hook is still running after the timeout of " +
                                          std::to_string(timeout.count()) + " ms");
    }
    hook_runs_->rethrow();
  });
  wait_for_future();
  unregister(this);
  return true;
}

// Whether all operations have been enqueued on a device.
bool TorchWork::on_streams() const {
  return !parts_.empty() && std::ranges::all_of(parts_, [](const auto& part) {
    const auto* point = part->point();
    return point != nullptr && point->stream().device.type != DeviceType::CPU;
  });
}

// After a wait the future is complete too, as with torch's own works.
void TorchWork::wait_for_future() {
  c10::intrusive_ptr<Future> future;
  {
    const std::lock_guard lock(future_mutex_);
    future = future_;
  }
  if (future != nullptr && !on_streams()) future->wait();
}

void TorchWork::abort() {
  throw Error(ErrorCode::Unsupported,
              "mcr: one operation cannot be stopped; abort() of the process group ends them all");
}

c10::intrusive_ptr<Future> TorchWork::make_future() {
  if (on_streams()) {
    if (auto error = error_of(parts_, nullptr)) {
      auto failed = c10::make_intrusive<Future>(c10::ListType::ofTensors());
      failed->setError(std::move(error));
      return failed;
    }
    const auto streams = streams_behind(parts_);
    std::vector<c10::Device> devices;
    for (const auto& stream : streams) devices.push_back(stream.device());
    auto future = c10::make_intrusive<Future>(c10::ListType::ofTensors(), std::move(devices));
    const c10::MultiStreamGuard guard(streams);
    future->markCompleted(c10::IValue(results_of(parts_)));
    return future;
  }
  auto future = c10::make_intrusive<Future>(c10::ListType::ofTensors());
  when_over([future, parts = parts_, runs = hook_runs_] {
    if (auto error = error_of(parts, runs.get())) return future->setError(std::move(error));
    future->markCompleted(c10::IValue(results_of(parts)));
  });
  return future;
}

// Runs the action when the parts are complete and their hooks have run: now, or on a thread for callbacks.
void TorchWork::when_over(const std::function<void()>& action) {
  const auto finish = [action, runs = hook_runs_] {
    if (runs != nullptr) runs->wait(nullptr);
    action();
  };
  const bool over = hook_runs_ == nullptr || hook_runs_->over();
  if (over && std::ranges::all_of(parts_, [](const auto& part) { return part->completed(); })) return finish();
  auto& completions = Completions::instance();
  // (The parts own their callbacks and these own the parts, but only until the last part is complete.)
  for (const auto& part : parts_) part->set_awaited();
  when_done([kept = NamedBackend::kept(finish), &completions] { completions.run(kept); });
}

c10::intrusive_ptr<Future> TorchWork::getFuture() {
  const UnlockedIfHeld guard;  // make_future() may need the GIL
  const std::lock_guard lock(future_mutex_);
  if (future_ == nullptr) future_ = make_future();
  return future_;
}

c10::intrusive_ptr<Future> TorchWork::getFutureResult() {
  auto future = c10::make_intrusive<Future>(c10::IntType::get());
  when_over([future, parts = parts_, runs = hook_runs_] {
    future->markCompleted(c10::IValue(static_cast<int64_t>(outcome(error_of(parts, runs.get())))));
  });
  return future;
}

float TorchWork::getDuration() const {
  const auto fail = [&](const char* text) {
    const auto call = parts_.empty() ? std::string("mcr") : parts_.front()->what();
    throw Error(ErrorCode::InvalidArgument, call + ": duration: " + text);
  };
  if (clock_ == nullptr) fail("expected timing enabled in the group before the call, got it not enabled");
  const auto nanoseconds = clock_->nanoseconds.load();
  if (nanoseconds < 0) fail("expected a complete operation, got a running one: wait for it first");
  return static_cast<float>(static_cast<double>(nanoseconds) / 1e6);
}

CompleteWork::CompleteWork(int rank, c10d::OpType type, uint64_t sequence, std::vector<at::Tensor> results)
    : c10d::Work(rank, type), sequence_(sequence), results_(std::move(results)) {
  finish();
}

c10::intrusive_ptr<c10d::Work> CompleteWork::of_blocking_call(int rank, c10d::OpType type, uint64_t sequence) {
  if (!c10d::allow_inflight_collective_as_graph_input()) return nullptr;
  return c10::make_intrusive<CompleteWork>(rank, type, sequence, std::vector<at::Tensor>{});
}

bool CompleteWork::wait(std::chrono::milliseconds) {
  unregister(this);
  return true;
}

c10::intrusive_ptr<Future> CompleteWork::getFuture() {
  auto future = c10::make_intrusive<Future>(c10::ListType::ofTensors());
  future->markCompleted(c10::IValue(results_));
  return future;
}

c10::intrusive_ptr<Future> CompleteWork::getFutureResult() {
  auto future = c10::make_intrusive<Future>(c10::IntType::get());
  future->markCompleted(c10::IValue(static_cast<int64_t>(c10d::WorkResult::SUCCESS)));
  return future;
}

}  // namespace mcr::python
