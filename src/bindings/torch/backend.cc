// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/backend.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <list>
#include <utility>

#include "bindings/python/calls.h"
#include "bindings/python/gil.h"
#include "bindings/python/signals.h"
#include "bindings/torch/completions.h"
#include "bindings/torch/error.h"
#include "engine/stream_call.h"
#include "observe/stop.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

using c10d::OpType;

// torch's lists have one entry per device of a rank, from times when a rank had several.
template <class Value>
Value& single(std::vector<Value>& values, const char* name, const TorchCall& call) {
  if (values.size() == 1) return values.front();
  throw Error(ErrorCode::InvalidArgument,
              call.what() + ": " + name + ": expected one per rank, got " + std::to_string(values.size()));
}

void expect_equal_lengths(std::size_t outputs, std::size_t inputs, const TorchCall& call) {
  if (outputs == inputs) return;
  throw Error(ErrorCode::InvalidArgument, call.what() + ": expected as many outputs as inputs, " +
                                              std::to_string(inputs) + ", got " + std::to_string(outputs));
}

// Calls that need the runtime, not only the group.
py::object runtime(const char* function) { return py::module_::import("mcr_dl.groups.torch_groups").attr(function); }

}  // namespace

TorchBackend::TorchBackend(std::shared_ptr<Group> group, c10::intrusive_ptr<Options> options)
    : c10d::Backend(group->rank(), group->size()), group_(std::move(group)), options_(std::move(options)) {
  options_->timeout = group_->spec().timeout;
  if (group_ == world()) TorchCall::block_in_this_thread();
}

void TorchBackend::setTimeout(milliseconds timeout) {
  if (timeout.count() <= 0) {
    throw Error(ErrorCode::InvalidArgument, "mcr: set_timeout (" + group_->label() +
                                                "): timeout: expected a positive one, got " +
                                                std::to_string(timeout.count()) + " ms");
  }
  timeout = bounded(timeout);
  group_->set_timeout(timeout);
  options_->timeout = timeout;
}

// ---- issuing

// The action to run when a call that begins now is complete; null without a hook.
std::function<void()> TorchBackend::hook(OpType type, uint64_t sequence) const {
  if (onCompletionHook_ == nullptr) return nullptr;
  using Clock = decltype(c10d::WorkInfo::timeStarted)::clock;  // differs between versions of torch
  return [hook = onCompletionHook_, type, sequence, start = Clock::now()] {
    const auto end = Clock::now();
    hook(std::make_shared<c10d::WorkInfo>(type, sequence, start, end, end - start));
  };
}

// The hook runs for the parts of a block when this ends.
TorchBackend::TorchWorkPtr TorchBackend::wrap(TorchWork::Parts parts, OpType type, uint64_t sequence) {
  auto hook_runs = blocks_.current() != nullptr ? nullptr : hook_runs_.begin(hook(type, sequence), parts.size());
  return c10::make_intrusive<TorchWork>(
      std::move(parts),
      TorchWork::Context{getRank(), type, sequence, type == OpType::BARRIER, timed_.load(std::memory_order_relaxed)},
      std::move(hook_runs));
}

// Runs the action with the number of the call. As in the group, a call that fails before anything was sent returns its
// number, unless another has followed.
template <class Action>
auto TorchBackend::numbered(OpType type, const TorchCall& call, const Action& action) {
  const bool counts = !c10d::isP2POp(type);
  uint64_t sequence = counts ? ++sequence_ : sequence_.load();
  try {
    return for_torch([&] { return action(sequence); });
  } catch (...) {
    if (counts && !call.sent()) sequence_.compare_exchange_strong(sequence, sequence - 1);
    throw;
  }
}

TorchBackend::TorchWorkPtr TorchBackend::issue(TorchCall& call, OpType type, bool asynchronous) {
  if (!asynchronous && blocks_.current() == nullptr) {
    auto [hook, number] = numbered(type, call, [&](uint64_t sequence) {
      auto made = this->hook(type, sequence);
      call.run();
      return std::pair(std::move(made), sequence);
    });
    if (hook != nullptr) run_hook(std::move(hook), call.what());
    return CompleteWork::of_blocking_call(getRank(), type, number);
  }
  auto [work, sequence] = numbered(type, call, [&](uint64_t number) { return std::pair(call.start(), number); });
  if (auto* block = blocks_.current()) block->push_back(work);
  TorchWork::Parts parts;
  parts.push_back(std::move(work));
  auto wrapped = wrap(std::move(parts), type, sequence);
  return asynchronous ? wrapped : CompleteWork::of_blocking_call(getRank(), type, sequence);
}

// Issues calls that torch makes as one; `fill` gives each its tensors.
template <class Given, class Fill>
TorchBackend::TorchWorkPtr TorchBackend::issue_all(std::size_t count, Op op, OpType type, const Given& opts,
                                                   const Fill& fill) {
  std::list<TorchCall> calls;
  for (std::size_t i = 0; i < count; ++i) fill(calls.emplace_back(*group_, op, opts.timeout), i);
  uint64_t sequence = ++sequence_;
  TorchWork::Parts parts;
  try {
    for_torch([&] {
      for (auto& call : calls) parts.push_back(call.start());
    });
  } catch (...) {
    if (parts.empty() && !calls.front().sent()) sequence_.compare_exchange_strong(sequence, sequence - 1);
    throw;
  }
  auto* block = blocks_.current();
  if (block != nullptr) block->append(parts.begin(), parts.end());
  auto work = wrap(std::move(parts), type, sequence);
  if (opts.asyncOp) return work;
  if (block == nullptr) work->wait();
  return CompleteWork::of_blocking_call(getRank(), type, sequence);
}

// A call that throws ends the block that it is in, as torch then leaves the block without endCoalescing().
class TorchBackend::InBlock {
 public:
  explicit InBlock(TorchBackend& backend) : backend_(backend) {}
  InBlock(const InBlock&) = delete;
  InBlock& operator=(const InBlock&) = delete;
  ~InBlock() {
    if (std::uncaught_exceptions() > before_) backend_.break_off();
  }

 private:
  TorchBackend& backend_;
  const int before_ = std::uncaught_exceptions();
};

// Ends this thread's block, if there is one. Its earlier calls go on.
void TorchBackend::break_off() noexcept {
  if (!blocks_.break_off()) return;
  try {
    const UnlockedIfHeld guard;
    end_batch();
  } catch (...) {
    blocks_.take();  // these were not sent, but only the exception that ends the block can be raised
  }
}

void TorchBackend::startCoalescing() {
  const CalledByTorch guard;
  break_off();  // torch has left the last block after an error of its own
  end_batch();  // of another group's block around this one, or that an exception has left
  begin_batch();
  blocks_.begin();
}

TorchBackend::TorchWorkPtr TorchBackend::endCoalescing() {
  auto parts = blocks_.take();
  if (!parts) {
    throw Error(ErrorCode::InvalidArgument,
                "mcr: endCoalescing (" + group_->label() + "): expected startCoalescing() before it, got none");
  }
  const CalledByTorch guard;
  end_batch();
  return wrap(std::move(*parts), OpType::COALESCED, sequence_.load());
}

// ---- collectives

TorchBackend::TorchWorkPtr TorchBackend::broadcast(TensorList& tensors, const c10d::BroadcastOptions& opts) {
  const InBlock block(*this);
  TorchCall call(*group_, Op::broadcast, opts.timeout);
  call.out(single(tensors, "tensors", call), "tensor").root(opts.rootRank);
  return issue(call, OpType::BROADCAST, opts.asyncOp);
}

TorchBackend::TorchWorkPtr TorchBackend::allreduce(TensorList& tensors, const c10d::AllreduceOptions& opts) {
  const InBlock block(*this);
  TorchCall call(*group_, Op::all_reduce, opts.timeout);
  const auto& tensor = single(tensors, "tensors", call);
  if (tensor.is_sparse()) return allreduce_sparse(tensors, opts);
  call.out(tensor, "tensor").reduction(opts.reduceOp);
  return issue(call, OpType::ALLREDUCE, opts.asyncOp);
}

TorchBackend::TorchWorkPtr TorchBackend::allreduce_coalesced(TensorList& tensors,
                                                             const c10d::AllreduceCoalescedOptions& opts) {
  const InBlock block(*this);
  return issue_all(tensors.size(), Op::all_reduce, OpType::ALLREDUCE_COALESCED, opts,
                   [&](TorchCall& call, std::size_t i) { call.out(tensors[i], "tensor").reduction(opts.reduceOp); });
}

TorchBackend::TorchWorkPtr TorchBackend::reduce(TensorList& tensors, const c10d::ReduceOptions& opts) {
  const InBlock block(*this);
  TorchCall call(*group_, Op::reduce, opts.timeout);
  call.out(single(tensors, "tensors", call), "tensor").reduction(opts.reduceOp).root(opts.rootRank);
  return issue(call, OpType::REDUCE, opts.asyncOp);
}

TorchBackend::TorchWorkPtr TorchBackend::allgather(TensorLists& outputs, TensorList& inputs,
                                                   const c10d::AllgatherOptions& opts) {
  const InBlock block(*this);
  TorchCall call(*group_, Op::all_gather, opts.timeout);
  call.in(single(inputs, "inputs", call), "tensor").out(single(outputs, "outputs", call), "tensor_list");
  return issue(call, OpType::ALLGATHER, opts.asyncOp);
}

TorchBackend::TorchWorkPtr TorchBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                         const c10d::AllgatherOptions& opts) {
  const InBlock block(*this);
  TorchCall call(*group_, Op::all_gather, opts.timeout);
  call.in(input).out(output);
  return issue(call, OpType::_ALLGATHER_BASE, opts.asyncOp);
}

// outputs[rank][i] is the output for input i of that rank.
TorchBackend::TorchWorkPtr TorchBackend::allgather_coalesced(TensorLists& outputs, TensorList& inputs,
                                                             const c10d::AllgatherOptions& opts) {
  const InBlock block(*this);
  TensorLists turned(inputs.size());  // outlives the calls
  for (const auto& of_rank : outputs) {
    expect_equal_lengths(of_rank.size(), inputs.size(), TorchCall(*group_, Op::all_gather, opts.timeout));
    for (std::size_t i = 0; i < inputs.size(); ++i) turned[i].push_back(of_rank[i]);
  }
  return issue_all(inputs.size(), Op::all_gather, OpType::ALLGATHER_COALESCED, opts,
                   [&](TorchCall& call, std::size_t i) { call.in(inputs[i]).out(turned[i], "output_tensor_lists"); });
}

TorchBackend::TorchWorkPtr TorchBackend::allgather_into_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                                                         const c10d::AllgatherOptions& opts) {
  const InBlock block(*this);
  expect_equal_lengths(outputs.size(), inputs.size(), TorchCall(*group_, Op::all_gather, opts.timeout));
  return issue_all(inputs.size(), Op::all_gather, OpType::ALLGATHER_COALESCED, opts,
                   [&](TorchCall& call, std::size_t i) { call.in(inputs[i]).out(outputs[i]); });
}

TorchBackend::TorchWorkPtr TorchBackend::gather(TensorLists& outputs, TensorList& inputs,
                                                const c10d::GatherOptions& opts) {
  const InBlock block(*this);
  TorchCall call(*group_, Op::gather, opts.timeout);
  call.root(opts.rootRank).in(single(inputs, "inputs", call), "tensor");
  if (call.is_root()) call.out(single(outputs, "outputs", call), "gather_list");
  return issue(call, OpType::GATHER, opts.asyncOp);
}

TorchBackend::TorchWorkPtr TorchBackend::scatter(TensorList& outputs, TensorLists& inputs,
                                                 const c10d::ScatterOptions& opts) {
  const InBlock block(*this);
  TorchCall call(*group_, Op::scatter, opts.timeout);
  call.root(opts.rootRank).out(single(outputs, "outputs", call), "tensor");
  if (call.is_root()) call.in(single(inputs, "inputs", call), "scatter_list");
  return issue(call, OpType::SCATTER, opts.asyncOp);
}

TorchBackend::TorchWorkPtr TorchBackend::reduce_scatter(TensorList& outputs, TensorLists& inputs,
                                                        const c10d::ReduceScatterOptions& opts) {
  const InBlock block(*this);
  TorchCall call(*group_, Op::reduce_scatter, opts.timeout);
  call.in(single(inputs, "inputs", call), "input_list").out(single(outputs, "outputs", call)).reduction(opts.reduceOp);
  return issue(call, OpType::REDUCE_SCATTER, opts.asyncOp);
}

TorchBackend::TorchWorkPtr TorchBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                              const c10d::ReduceScatterOptions& opts) {
  const InBlock block(*this);
  TorchCall call(*group_, Op::reduce_scatter, opts.timeout);
  call.in(input).out(output).reduction(opts.reduceOp);
  return issue(call, OpType::_REDUCE_SCATTER_BASE, opts.asyncOp);
}

TorchBackend::TorchWorkPtr TorchBackend::reduce_scatter_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                                                         const c10d::ReduceScatterOptions& opts) {
  const InBlock block(*this);
  expect_equal_lengths(outputs.size(), inputs.size(), TorchCall(*group_, Op::reduce_scatter, opts.timeout));
  return issue_all(inputs.size(), Op::reduce_scatter, OpType::COALESCED, opts, [&](TorchCall& call, std::size_t i) {
    call.in(inputs[i]).out(outputs[i]).reduction(opts.reduceOp);
  });
}

TorchBackend::TorchWorkPtr TorchBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                       std::vector<int64_t>& output_splits,
                                                       std::vector<int64_t>& input_splits,
                                                       const c10d::AllToAllOptions& opts) {
  const InBlock block(*this);
  TorchCall call(*group_, Op::all_to_all, opts.timeout);
  call.in(input).out(output).splits(output_splits, input_splits);
  return issue(call, OpType::ALLTOALL_BASE, opts.asyncOp);
}

TorchBackend::TorchWorkPtr TorchBackend::alltoall(TensorList& outputs, TensorList& inputs,
                                                  const c10d::AllToAllOptions& opts) {
  const InBlock block(*this);
  TorchCall call(*group_, Op::all_to_all, opts.timeout);
  call.in(inputs, "input_tensor_list").out(outputs, "output_tensor_list");
  return issue(call, OpType::ALLTOALL, opts.asyncOp);
}

TorchBackend::TorchWorkPtr TorchBackend::barrier(const c10d::BarrierOptions& opts) {
  const InBlock block(*this);
  TorchCall call(*group_, Op::barrier, opts.timeout);
  return issue(call, OpType::BARRIER, opts.asyncOp);
}

// ---- messages

TorchBackend::TorchWorkPtr TorchBackend::send(TensorList& tensors, int rank, int tag) {
  const InBlock block(*this);
  TorchCall call(*group_, Op::send, milliseconds(0));
  call.out(single(tensors, "tensors", call), "tensor").root(rank, "dst").tag(tag);
  return issue(call, OpType::SEND, true);
}

TorchBackend::TorchWorkPtr TorchBackend::recv(TensorList& tensors, int rank, int tag) {
  const InBlock block(*this);
  TorchCall call(*group_, Op::recv, milliseconds(0));
  call.out(single(tensors, "tensors", call), "tensor").root(rank, "src").tag(tag);
  return issue(call, OpType::RECV, true);
}

TorchBackend::TorchWorkPtr TorchBackend::recvAnysource(TensorList& tensors, int tag) {
  const InBlock block(*this);
  TorchCall call(*group_, Op::recv, milliseconds(0));
  call.out(single(tensors, "tensors", call), "tensor").any_source().tag(tag);
  return issue(call, OpType::RECVANYSOURCE, true);
}

// ---- the group as a whole

void TorchBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  const CalledByTorch guard;
  const Locked locked;
  const auto limit = opts.timeout.count() > 0 ? opts.timeout : group_->spec().timeout;
  py::module_::import("mcr_dl.groups.barriers").attr("monitored_barrier")(py::cast(group_), limit, wait_all_ranks);
}

void TorchBackend::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  if (hasHooks()) {
    throw Error(ErrorCode::InvalidArgument,
                "mcr: register_on_completion_hook (" + group_->label() + "): expected one hook, got a second");
  }
  // Shared: copying torch's own function would change a Python reference count without the GIL.
  onCompletionHook_ = [shared = std::make_shared<const std::decay_t<decltype(hook)>>(std::move(hook))](auto info) {
    (*shared)(std::move(info));
  };
}

void TorchBackend::waitForPendingWorks() {
  const CalledByTorch guard;
  const auto now = std::chrono::steady_clock::now();
  milliseconds limit{};
  {
    const Locked locked;
    limit = runtime("patience_with_hooks")().cast<milliseconds>();
  }
  bool over = false;
  for_torch([&] { over = hook_runs_.wait(check_signals, now + limit); });
  if (over) return;
  const Locked locked;
  runtime("on_late_hooks")(py::cast(group_));
}

c10d::ErrorType TorchBackend::getError() {
  if (group_->closed() || group_->position().lost() != nullptr) return c10d::ErrorType::COMM_ERROR;
  try {
    for (const auto& communicator : group_->communicators()) communicator->check();
  } catch (const Error& error) {
    return error.code() == ErrorCode::Timeout ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::COMM_ERROR;
  }
  return c10d::ErrorType::SUCCESS;
}

c10::intrusive_ptr<c10d::Backend> TorchBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                      const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  if (std::ranges::find(ranks, getRank()) == ranks.end()) return nullptr;
  const CalledByTorch guard;
  const Locked locked;
  if (store == nullptr || store != split_.first) {  // else torch asks for another type of device
    auto part = runtime("split")(py::cast(group_), ranks, opts->timeout, py::cast(opts), options_->backends);
    split_ = {store, part.cast<c10::intrusive_ptr<TorchBackend>>()};
  }
  return split_.second;
}

bool TorchBackend::supportsShrinking() const { return true; }

c10::intrusive_ptr<c10d::Backend> TorchBackend::shrink(const std::vector<int64_t>& excluded, int,
                                                       const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const CalledByTorch guard;
  const Locked locked;
  const auto options = opts == nullptr ? py::object(py::none()) : py::cast(opts);
  return runtime("shrink")(py::cast(group_), excluded, options).cast<c10::intrusive_ptr<TorchBackend>>();
}

void TorchBackend::shutdown() {
  const CalledByTorch guard;
  const Locked locked;
  if (!group_->closed()) runtime("on_shutdown")(py::cast(group_));
}

void TorchBackend::abort() {
  if (Stop::forked()) Stop::check();  // the communicators are the parent's
  const CalledByTorch guard;
  const Locked locked;
  if (group_->closed()) return;
  {
    const Unlocked guard;  // a library's thread may need the GIL before it lets go
    mcr::abort(*group_);
  }
  if (!group_->closed()) runtime("on_abort")(py::cast(group_));  // else another thread has done it
}

}  // namespace mcr::python
