// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/call.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"
#include "bindings/python/arguments.h"
#include "bindings/python/gil.h"
#include "bindings/python/kept_tensors.h"
#include "bindings/python/log.h"
#include "bindings/python/signals.h"
#include "bindings/torch/named_backend.h"
#include "bindings/torch/thread_number.h"

namespace mcr::python {

namespace {

std::atomic<uint64_t> blocking_thread{0};  // its number; 0: none

// torch releases the GIL before it calls a backend.
void note_site() {
  if (!caller_wanted()) return;
  const Locked locked;
  note_caller();
}

}  // namespace

TorchCall::TorchCall(Group& group, Op op, std::chrono::milliseconds timeout) : group_(group) {
  call_.op = op;
  extras_.names = &names_;
  call_.any_form = group.any_form();
  if (timeout.count() > 0) call_.timeout = bounded(timeout);  // torch's kUnsetTimeout is negative
}

void TorchCall::block_in_this_thread() noexcept { blocking_thread.store(thread_number(), std::memory_order_relaxed); }

// Errors name the call, as in the functions of mcr_dl.
template <class Action>
auto TorchCall::named(Action action) {
  try {
    return action();
  } catch (const Error& error) {
    throw Error(error.code(), what() + ": " + error.what());
  }
}

std::string TorchCall::what() const {
  const auto backend = candidate_ == nullptr ? group_.any_backend() : std::string_view(candidate_->name);
  return describe(std::string(backend), row(call_.op).name, group_.label());
}

TorchCall& TorchCall::in(const at::Tensor& tensor, const char* name) {
  in_ = &tensor;
  names_.in = name;
  named([&] { call_.in = tensors_.memory(tensors_.get(tensor, name), Use::Send); });
  return *this;
}

TorchCall& TorchCall::out(const at::Tensor& tensor, const char* name) {
  out_ = &tensor;
  names_.out = name;
  const bool in_place = row(call_.op).extent == Extent::Same;
  named([&] { call_.out = tensors_.memory(tensors_.get(tensor, name), in_place ? Use::InPlace : Use::Receive); });
  return *this;
}

TorchCall& TorchCall::in(const TensorList& list, const char* name) {
  names_.in = name;
  named([&] { extras_.in_blocks = tensors_.list(list, name, group_.size(), Use::Send).blocks; });
  return *this;
}

TorchCall& TorchCall::out(const TensorList& list, const char* name) {
  names_.out = name;
  named([&] { extras_.out_blocks = tensors_.list(list, name, group_.size(), Use::Receive).blocks; });
  results_ = &list;
  return *this;
}

TorchCall& TorchCall::reduction(const c10d::ReduceOp& op) {
  call_.red = static_cast<RedOp>(static_cast<uint8_t>(op.op_));  // the orders are equal: types.h
  if (call_.red == RedOp::PREMUL_SUM) named([&] { call_.factor = tensors_.take_factor(premul_factor(op)); });
  return *this;
}

TorchCall& TorchCall::root(int64_t rank, const char* name) {
  named([&] {
    if (rank >= 0 && rank < group_.size()) return;
    throw Error(ErrorCode::InvalidArgument, std::string(name) + ": expected a rank of the group (0 to " +
                                                std::to_string(group_.size() - 1) + "), got " + std::to_string(rank));
  });
  names_.root = name;
  call_.root = static_cast<int>(rank);
  return *this;
}

TorchCall& TorchCall::any_source() {
  call_.root = kAnyRank;
  return *this;
}

TorchCall& TorchCall::tag(int tag) {
  call_.tag = tag;
  return *this;
}

TorchCall& TorchCall::splits(const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows) {
  if (out_rows.empty() && in_rows.empty()) return *this;
  call_.vectored = true;
  names_.in_counts = "input_split_sizes";
  names_.out_counts = "output_split_sizes";
  named([&] {
    call_.in_counts = extras_.keep_counts(split_counts(in_rows, names_.in_counts, *in_, group_.size()));
    call_.out_counts = extras_.keep_counts(split_counts(out_rows, names_.out_counts, *out_, group_.size()));
  });
  return *this;
}

TorchCall& TorchCall::out_counts(std::vector<int64_t> counts) {
  call_.vectored = true;
  call_.out_counts = extras_.keep_counts(std::move(counts));
  return *this;
}

TorchCall::TensorList TorchCall::results() const {
  if (results_ != nullptr) return *results_;
  return out_ == nullptr ? TensorList{} : TensorList{*out_};
}

Candidate* TorchCall::prepare() {
  tensors_.describe(call_, extras_);
  tensors_.place_factor(call_);
  extras_.keeper = this;
  extras_.keep = [](void* keeper) -> std::shared_ptr<void> {
    const auto& self = *static_cast<TorchCall*>(keeper);
    const auto results = self.results();
    return KeptTensors::of({results.begin(), results.end()}, self.tensors_, self.out_);
  };
  extras_.release = KeptTensors::release_of;
  if (NamedBackend::any()) candidate_ = named([&] { return NamedBackend::candidate(group_); });
  return candidate_;
}

void TorchCall::run() {
  note_site();
  if (blocking_thread.load(std::memory_order_relaxed) != thread_number()) call_.any_form = true;
  const CalledByTorch guard;
  mcr::run(group_, prepare(), call_, extras_, check_signals);
}

std::shared_ptr<Work> TorchCall::start() {
  note_site();
  const CalledByTorch guard;
  return mcr::start(group_, prepare(), call_, extras_, check_signals);
}

}  // namespace mcr::python
