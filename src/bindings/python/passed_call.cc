// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/passed_call.h"

#include <c10/core/InferenceMode.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "bindings/python/arguments.h"
#include "bindings/python/functions.h"
#include "bindings/python/gil.h"
#include "bindings/python/handles.h"
#include "bindings/python/none.h"
#include "bindings/python/unlocked.h"
#include "bindings/python/work.h"
#include "bindings/torch/named_backend.h"
#include "choose/select.h"
#include "engine/dispatch.h"
#include "engine/executor.h"
#include "engine/flatten.h"
#include "observe/activity.h"

namespace py = pybind11;

namespace mcr::python {

std::string where(const std::string& pass, const Passage& passage) {
  return "pass '" + pass + "' in " + described(passage);
}

namespace {

py::object list_of(std::span<const int64_t> counts) {
  return py::cast(std::vector<int64_t>(counts.begin(), counts.end()));
}

}  // namespace

PassedCall::PassedCall(std::shared_ptr<Group> group, const std::string& pass, Passage& passage, const Next& next)
    : group_(std::move(group)),
      pass_(pass),
      passage_(&passage),
      next_(next),
      earlier_steps_(passage.extras.after.size()) {}

PassedCall::~PassedCall() {
  if (deferred_ == nullptr) return;
  const Error error(ErrorCode::Backend, "pass '" + pass_ + "' has dropped the call that it held, without proceed()");
  deferred_->fail(error.caused_by(std::make_shared<const Cause>()));
}

// ---- the values of the call

Error PassedCall::over() const {
  return {ErrorCode::InvalidArgument, "pass '" + pass_ + "': the call is over; hold() keeps it"};
}

const Call& PassedCall::call() const {
  if (passage_ == nullptr && fate_ != Fate::Held) throw over();
  return fate_ == Fate::Open ? passage_->call : kept_;
}

std::string PassedCall::op() const { return std::string(row(call().op).name); }
py::object PassedCall::group() const { return py::reinterpret_steal<py::object>(handle_of(group_)); }
int PassedCall::tag() const { return call().tag; }
bool PassedCall::vectored() const { return call().vectored; }

bool PassedCall::asynchronous() const {
  call();
  return passage_ == nullptr || passage_->asynchronous;
}

int64_t PassedCall::bytes() const { return larger_side_bytes(call()); }

py::object PassedCall::backend() const {
  call();
  if (fate_ != Fate::Open || passage_ == nullptr) return text_or_none(named_);
  return text_or_none(passage_->candidate == nullptr ? nullptr : &passage_->candidate->name);
}

py::object PassedCall::dtype() const {
  return py::module_::import("torch").attr(std::string(row(call().dtype).name).c_str());
}

py::object PassedCall::reduction() const { return or_none(row(call().op).is(kReduces), name(call().red)); }

py::object PassedCall::root() const {
  const bool has = row(call().op).is(kRooted) || row(call().op).is(kPeer);
  return or_none(has && call().root != kAnyRank, call().root);
}

// For a view of the call's tensors.
std::shared_ptr<void> PassedCall::memory() const {
  if (fate_ == Fate::Open) return memory_of(passage_->extras);
  if (memory_ == nullptr) throw over();
  return memory_;
}

py::object PassedCall::view(const Buffer& side) const {
  if (side.data == nullptr) return py::none();
  return py::cast(view_of(side, call().dtype, call().device, memory()));
}

py::object PassedCall::input() const { return view(call().in); }
py::object PassedCall::output() const { return view(call().out); }
py::object PassedCall::input_counts() const { return list_of(call().in_counts); }
py::object PassedCall::output_counts() const { return list_of(call().out_counts); }

// ---- the actions of a pass

void PassedCall::expect_open() const {
  if (fate_ == Fate::Open && passage_ != nullptr) return;
  throw Error(
      ErrorCode::InvalidArgument,
      "pass '" + pass_ +
          "': expected a call that the pass still holds, got one that it has issued or answered, or that has ended");
}

void PassedCall::decide(Fate fate) {
  expect_open();
  keep_values();
  fate_ = fate;
}

// Before the action: the call's end may free the extras, and a backend may get other memory, another type or reduction.
void PassedCall::keep_values() {
  kept_ = passage_->call;
  if (passage_->candidate != nullptr) named_ = &passage_->candidate->name;  // it lives as long as the process
  memory_ = memory_of(passage_->extras);
  const std::array spans = {&kept_.in_counts, &kept_.in_displs, &kept_.out_counts, &kept_.out_displs};
  if (std::ranges::all_of(spans, [](const auto* span) { return span->empty(); })) return;
  counts_ = std::make_shared<Counts>();
  for (std::size_t i = 0; i < spans.size(); ++i) {
    (*counts_)[i].assign(spans[i]->begin(), spans[i]->end());
    *spans[i] = (*counts_)[i];
  }
}

// A pass may catch the error, but the call has failed.
template <class Action>
auto PassedCall::remembered(Action action) {
  try {
    return unlocked(action);
  } catch (const py::error_already_set& error) {
    failure_ = error.value();
    throw;
  }
}

// The tensor that takes the place of one side; undefined if the pass gives none.
at::Tensor PassedCall::replacement(Tensors& tensors, const Buffer& side, const char* name,
                                   const py::object& value) const {
  if (value.is_none()) return {};
  at::Tensor tensor = tensors.get(value.ptr(), name, Use::InPlace);
  const auto& call = passage_->call;
  if (!tensor.is_contiguous()) {
    throw Error(ErrorCode::InvalidArgument, "pass '" + pass_ + "': " + name +
                                                ": expected a tensor whose elements lie row by row, got another order "
                                                "(call .contiguous())");
  }
  if (side.data == nullptr || tensor.numel() != side.count) {
    throw Error(ErrorCode::InvalidArgument, "pass '" + pass_ + "': " + name + ": expected " +
                                                std::to_string(side.count) + " elements, got " +
                                                std::to_string(tensor.numel()));
  }
  if (!row(call.op).is(kReduces)) return tensor;
  const auto dtype = tensors.dtype();
  const bool factor = takes_factor(dtype, call.red);
  if (!factor && !defined(dtype, call.red)) {
    throw Error(ErrorCode::InvalidType, "pass '" + pass_ + "': " + name + ": " + std::string(mcr::name(call.red)) +
                                            " is not defined for " + std::string(row(dtype).name));
  }
  if (factor && call.factor_data != nullptr && dtype != call.dtype) {
    throw Error(ErrorCode::InvalidType,
                "pass '" + pass_ + "': " + name + ": expected " + std::string(row(call.dtype).name) +
                    ", the type of the factor on the device, got " + std::string(row(dtype).name));
  }
  return tensor;
}

void PassedCall::replace(Tensors& tensors, Buffer& side, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  side.data = tensors.memory(tensor, Use::InPlace).data;
  passage_->call.dtype = tensors.dtype();
  passage_->call.device = tensors.device();
  passage_->extras.owned.push_back(std::make_shared<at::Tensor>(tensor));
}

// The call's own output is distributed to the tensors of a list, or to tensors in another order. The pass may change
// that output after the operation, so distribution comes after the pass's steps, but before the steps of earlier
// passes.
void PassedCall::distribute_later() {
  auto& extras = passage_->extras;
  Extras last;
  last.out_blocks = std::exchange(extras.out_blocks, {});
  last.deliver = std::exchange(extras.deliver, nullptr);
  unflatten(passage_->call, last);
  const auto device = passage_->call.device;
  for (auto& copy : last.behind) {
    last.finish.emplace_back(
        [copy = std::move(copy), device] { copy(DeviceRuntime::of(device.type).current(device)); });
  }
  // The last one of `after` runs first.
  extras.after.insert(extras.after.begin() + static_cast<std::ptrdiff_t>(earlier_steps_),
                      std::make_move_iterator(last.finish.rbegin()), std::make_move_iterator(last.finish.rend()));
}

// Changes nothing before all arguments are known to be right, so that a pass can call it again after a mistake.
py::object PassedCall::proceed(const py::object& input, const py::object& output, const py::object& backend) {
  if (fate_ == Fate::Held) {
    if (!input.is_none() || !output.is_none() || !backend.is_none()) {
      throw Error(ErrorCode::InvalidArgument, "pass '" + pass_ + "': a held call goes on as it is");
    }
    return proceed_held();
  }
  expect_open();
  auto& call = passage_->call;
  Tensors tensors;
  const auto in = replacement(tensors, call.in, "input", input);
  const auto out = replacement(tensors, call.out, "output", output);
  const bool both = call.in.data != nullptr && call.out.data != nullptr;
  if (both && in.defined() != out.defined() && tensors.dtype() != call.dtype) {
    throw Error(ErrorCode::InvalidType, "pass '" + pass_ + "': input and output must have one dtype");
  }
  auto* const candidate = backend.is_none() ? passage_->candidate : candidate_argument(*group_, backend.ptr());
  if (out.defined()) expect_steps();
  decide(Fate::Proceeded);
  passage_->candidate = candidate;
  if (out.defined()) distribute_later();  // before the call gets another dtype
  replace(tensors, call.in, in);
  replace(tensors, call.out, out);
  outcome_ = remembered([&] { return next_(*passage_); });
  if (passage_->asynchronous) return py::cast(outcome_.work);
  return or_none(outcome_.source >= 0, outcome_.source);
}

// From any thread, also while handle() still runs on another one: what changes is taken with the GIL.
py::object PassedCall::proceed_held() {
  if (deferred_ == nullptr) throw Error(ErrorCode::InvalidArgument, "pass '" + pass_ + "': the call has gone on");
  const auto deferred = std::exchange(deferred_, nullptr);
  auto candidate = candidate_;
  if (candidate_) candidate_->communicator.reset();  // the program may keep this object for long
  auto chain = std::exchange(chain_, nullptr);
  auto memory = memory_;
  if (passage_ == nullptr) memory_ = nullptr;
  {
    const Unlocked guard;
    issue_held(*deferred, std::move(candidate), std::move(chain), std::move(memory));
  }
  return py::none();
}

// Call without the GIL.
void PassedCall::issue_held(Deferred& deferred, std::optional<Candidate> candidate, std::shared_ptr<const Chain> chain,
                            std::shared_ptr<void> memory) const {
  try {
    if (group_->closed()) throw destroyed_group();
    Extras extras;                              // the call's own is in the Work that hold() made
    extras.owned.push_back(std::move(memory));  // for later passes that keep a view
    extras.owned.push_back(counts_);
    Call call = kept_;
    Passage passage{*group_, candidate ? &*candidate : nullptr, call, extras, true};
    mark_sent(passage.notes);  // hold() has: later passes count the call on all ranks, although it may fail on this one
    deferred.fulfil(Next(chain, from_)(passage).work);
  } catch (...) {
    deferred.fail(current_error());
  }
}

// On a device, only the operation itself copies between its memory and lists of tensors or strided ones.
void PassedCall::expect_own_memory(const char* action) const {
  const auto& extras = passage_->extras;
  if (passage_->call.device.type == DeviceType::CPU) return;
  if (extras.before.empty() && extras.behind.empty() && extras.out_blocks.empty() && extras.deliver == nullptr) return;
  throw Error(ErrorCode::Unsupported, "pass '" + pass_ + "': " + action +
                                          ": expected a call on contiguous tensors of a device, got one whose tensors "
                                          "are copied before or after the operation");
}

py::object PassedCall::done() {
  expect_open();
  expect_own_memory("done()");
  decide(Fate::Answered);
  if (!passage_->asynchronous) {
    remembered([&] {
      unflatten(passage_->call, passage_->extras);
      passage_->extras.conclude();
    });
    return py::none();
  }
  if (passage_->candidate == nullptr) passage_->candidate = &group_->choose(passage_->call);
  outcome_.work = mcr::hold(*passage_, nullptr);
  return py::cast(outcome_.work);
}

py::object PassedCall::hold() {
  if (passage_ != nullptr && !passage_->asynchronous) {
    throw Error(ErrorCode::InvalidArgument, "pass '" + pass_ + "': only an asynchronous call can be held");
  }
  expect_open();
  expect_own_memory("hold()");
  decide(Fate::Held);
  if (passage_->candidate != nullptr) candidate_.emplace(*passage_->candidate);
  chain_ = next_.chain();
  from_ = next_.from();
  deferred_ = std::make_shared<Deferred>();
  if (passage_->candidate == nullptr) passage_->candidate = &group_->choose(passage_->call);
  outcome_.work = mcr::hold(*passage_, std::make_unique<DeferredRequest>(deferred_));
  return py::cast(outcome_.work);
}

// A pass may keep this object for long, and what these refer to may have it: a traceback has the frame of handle(), a
// Work the steps of after().
void PassedCall::close() {
  passage_ = nullptr;
  failure_ = {};
  outcome_ = {};
  if (fate_ != Fate::Held || deferred_ == nullptr) memory_ = nullptr;
}

// The program may go on with the device's stream before a thread of the host has run the step.
void PassedCall::expect_steps() const {
  if (passage_->asynchronous && passage_->call.device.type != DeviceType::CPU) {
    throw Error(ErrorCode::Unsupported, "pass '" + pass_ +
                                            "': after() and proceed(output=...) expect a blocking call on a device, "
                                            "got an asynchronous one, whose result the program could use too early: "
                                            "make the call blocking, or keep its output");
  }
}

void PassedCall::after(py::function step) {
  if (passage_ == nullptr || fate_ != Fate::Open) {
    throw Error(ErrorCode::InvalidArgument, "pass '" + pass_ + "': after() comes before the call goes on");
  }
  expect_steps();
  // The views that the pass has are then tensors of inference mode, which no thread may change outside.
  const bool inference = c10::InferenceMode::is_enabled();
  passage_->extras.after.emplace_back([step = shared(std::move(step)), where = where(pass_, *passage_), inference] {
    const Activity::Pause pause;
    const Locked locked;
    const NamedBackend::None unnamed;
    const Executor::InStep inside;
    try {
      if (inference) {
        const c10::InferenceMode mode;
        (*step)();
      } else {
        (*step)();
      }
    } catch (py::error_already_set& error) {
      throw taken(error, where);
    }
  });
}

Outcome PassedCall::outcome(const py::object& returned) {
  if (failure_) {
    PyErr_SetObject(py::type::of(failure_).ptr(), failure_.ptr());
    throw py::error_already_set();
  }
  if (fate_ == Fate::Open) {
    throw Error(ErrorCode::InvalidArgument,
                "pass '" + pass_ + "': handle() must call proceed(), done() or hold(), and has called none of them");
  }
  if (!passage_->asynchronous) return outcome_;
  auto work = work_of(returned.ptr());
  if (work == nullptr) {
    throw Error(ErrorCode::InvalidType, "pass '" + pass_ +
                                            "': handle() must return the Work of an asynchronous call, got " +
                                            std::string(py::str(py::type::of(returned).attr("__name__"))));
  }
  if (work != outcome_.work) {
    throw Error(ErrorCode::InvalidArgument,
                "pass '" + pass_ +
                    "': expected handle() to return the Work of this call, which proceed(), done() or hold() gave, got "
                    "that of another call");
  }
  return {std::move(work)};
}

}  // namespace mcr::python
