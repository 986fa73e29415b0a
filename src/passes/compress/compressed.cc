// SPDX-License-Identifier: Apache-2.0
#include "passes/compress/compressed.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/reduce.h"
#include "engine/dispatch.h"
#include "engine/flatten.h"

namespace mcr {

namespace {

std::byte* at(void* data, int64_t offset, DType dtype) {
  return static_cast<std::byte*>(data) + offset * size_of(dtype);
}

// The parts of an all_reduce, as even as they can be with all but the last of one size.
std::vector<int64_t> shares(int64_t count, int size) {
  const int64_t each = share(count, size);
  std::vector<int64_t> result;
  for (int i = 0; i < size; ++i) result.push_back(std::clamp(count - i * each, int64_t{0}, each));
  return result;
}

// All ranks' contributions to this rank's part, combined in rank order in the type that the codec sees.
class Combination {
 public:
  Combination(const Parcels& parcels, DType dtype, RedOp red)
      : coded_(coded_type(dtype)), count_(parcels.count(0)), sum_(count_ * size_of(coded_)) {
    parcels.decode(0, sum_.get(), coded_);
    const Scratch other(count_ * size_of(coded_));
    for (std::size_t i = 1; i < parcels.parts(); ++i) {
      parcels.decode(i, other.get(), coded_);
      combine(sum_.get(), other.get(), count_, coded_, red == RedOp::AVG ? RedOp::SUM : red);
    }
    if (red == RedOp::AVG) divide(sum_.get(), count_, coded_, static_cast<int64_t>(parcels.parts()));
  }

  const void* data() const { return sum_.get(); }
  DType dtype() const { return coded_; }

  void store(void* out, DType dtype) const {
    if (dtype != coded_) return narrow(reinterpret_cast<const float*>(sum_.get()), count_, dtype, out);
    if (count_ != 0) std::memcpy(out, sum_.get(), static_cast<std::size_t>(count_ * size_of(dtype)));
  }

 private:
  DType coded_;
  int64_t count_;
  Scratch sum_;
};

void decode_parts(const Parcels& parcels, std::span<const int64_t> displs, void* out, DType dtype) {
  int64_t next = 0;
  for (std::size_t i = 0; i < parcels.parts(); ++i) {
    parcels.decode(i, at(out, displs.empty() ? next : displs[i], dtype), dtype);
    next += parcels.count(i);
  }
}

}  // namespace

Compressed::Compressed(Passage& passage, const Next& next, const Codec& codec, CompressContext context)
    : passage_(passage),
      next_(next),
      codec_(codec),
      context_(std::move(context)),
      op_(passage.call.op),
      dtype_(passage.call.dtype),
      even_(codec.fixed() && !passage.call.vectored) {}

Parcels Compressed::parcels(Counts counts) const { return {codec_, dtype_, std::move(counts), even_ ? place() : 0}; }

// The largest part of a call whose parts differ by the size of the last one at most: of one size on all ranks, so that
// places of it make a call without counts.
int64_t Compressed::place() const {
  const auto& call = passage_.call;
  const int size = passage_.group.size();
  if (op_ == Op::all_reduce) return share(call.out.count, size);
  if (op_ == Op::all_gather) return call.in.count;
  return op_ == Op::all_to_all ? call.in.count / size : call.out.count;
}

Compressed::Counts Compressed::in_counts() const {
  const auto& call = passage_.call;
  const auto size = static_cast<std::size_t>(passage_.group.size());
  if (op_ == Op::all_reduce) return shares(call.out.count, passage_.group.size());
  if (op_ == Op::all_gather) return {call.in.count};
  if (call.vectored) return {call.in_counts.begin(), call.in_counts.end()};
  return Counts(size, call.in.count / passage_.group.size());
}

Compressed::Counts Compressed::out_counts() const {
  const auto& call = passage_.call;
  const auto size = static_cast<std::size_t>(passage_.group.size());
  if (op_ == Op::all_reduce) return Counts(size, in_counts()[static_cast<std::size_t>(passage_.group.rank())]);
  if (op_ == Op::reduce_scatter) return Counts(size, call.out.count);
  if (call.vectored) return {call.out_counts.begin(), call.out_counts.end()};
  return Counts(size, op_ == Op::all_gather ? call.in.count : call.out.count / passage_.group.size());
}

// Encoding leaves the caller's tensors alone from here on, so that input and output may be the same memory.
void Compressed::prepare() {
  const auto& call = passage_.call;
  const bool root = row(op_).is(kRooted) && call.root == passage_.group.rank();
  const bool sends = root || op_ == Op::send;
  transfer_ = std::make_shared<Transfer>(carrier_of(op_), call, !even_, sends);
  if (row(op_).extent == Extent::Same && op_ != Op::all_reduce) {
    transfer_->out.emplace(parcels({call.out.count}));
    if (sends) transfer_->out->encode(0, call.out.data, dtype_);
    passage_.trail.sent_bytes = sends ? transfer_->sent_bytes() : 0;
    return;
  }
  transfer_->in.emplace(parcels(in_counts()));
  transfer_->out.emplace(parcels(out_counts()));
  const bool reduces = op_ == Op::all_reduce;
  double* residual = context_.residual == nullptr ? nullptr : context_.residual->sent.data();
  encode_parts(reduces ? call.out.data : call.in.data, residual);
  passage_.trail.sent_bytes = transfer_->sent_bytes();
  if (!reduces) return;
  result_ = std::make_shared<Transfer>(Op::all_gather, call, !even_);
  result_->in.emplace(parcels({transfer_->out->count(0)}));
  result_->out.emplace(parcels(in_counts()));
  passage_.trail.sent_bytes += result_->in->bytes();
}

void Compressed::encode_parts(const void* data, double* residual) {
  auto& in = *transfer_->in;
  const auto displs = op_ == Op::all_reduce ? std::span<const int64_t>{} : passage_.call.in_displs;
  int64_t next = 0;
  for (std::size_t i = 0; i < in.parts(); ++i) {
    const int64_t place = displs.empty() ? next : displs[i];
    in.encode(i, at(const_cast<void*>(data), place, dtype_), dtype_, residual == nullptr ? nullptr : residual + place);
    next += in.count(i);
  }
}

bool Compressed::single() const { return codec_.fixed() && op_ != Op::all_reduce; }

Outcome Compressed::run() {
  prepare();
  passage_.trail.codec = &codec_.name();
  decode_at_end();
  if (single() && !passage_.asynchronous) return run_inline();
  Plan plan;
  Call call = codec_.fixed() ? transfer_->data_call(plan) : transfer_->size_call(plan, context_.number);
  Passage first{passage_.group, passage_.slot, call, plan, true};
  auto work = next_(first).work;
  std::shared_ptr<Work> held;
  if (op_ == Op::send && !codec_.fixed()) {
    // The data leaves from memory of its own: the caller need not wait until the receiver has the size and asks for it.
    const Work& sizes = *work;
    steps().front()(sizes);
    held = hold(passage_, request_of(std::move(work)));
  } else if (single()) {
    held = hold(passage_, request_of(std::move(work)));
  } else {
    auto steps = std::make_shared<Steps>(std::move(work), this->steps());
    context_.sequence->begin(steps);
    held = hold(passage_, request_of(context_.sequence, std::move(steps)));
  }
  if (passage_.asynchronous) return {held};
  wait(*held, held->limit(), passage_.interrupt);
  return {nullptr, held->source()};
}

Outcome Compressed::run_inline() {
  Plan plan;
  Call call = transfer_->data_call(plan);
  Passage sub{passage_.group, passage_.slot, call, plan, false, passage_.interrupt};
  const auto outcome = next_(sub);
  unflatten(passage_.call, passage_.plan);
  try {
    passage_.plan.conclude();
  } catch (const Error& error) {
    throw refusal(passage_, error);
  }
  return outcome;
}

// What is issued later is kept by these closures alone, so they hold no reference to this object.
std::vector<Steps::Step> Compressed::steps() {
  std::vector<Steps::Step> steps;
  const auto start_on_shadow = [shadow = context_.shadow, slot = context_.slot](Call call, Plan& plan) {
    auto own = slot;
    return mcr::start(*shadow, &own, call, plan);
  };
  const auto data = [start_on_shadow](const std::shared_ptr<Transfer>& transfer, const Work& before) {
    transfer->take_sizes(before.source());
    Plan plan;
    const Call call = transfer->data_call(plan);
    return start_on_shadow(call, plan);
  };
  const bool fixed = codec_.fixed();
  if (!fixed) steps.emplace_back([data, transfer = transfer_](const Work& before) { return data(transfer, before); });
  if (op_ != Op::all_reduce) return steps;
  const auto combined = [transfer = transfer_, result = result_, dtype = dtype_, red = passage_.call.red,
                         residual = context_.residual] {
    auto& part = *result->in;
    // What fails here must not keep this rank from the next call: the others make it.
    try {
      const Combination sum(*transfer->out, dtype, red);
      part.encode(0, sum.data(), sum.dtype(), residual == nullptr ? nullptr : residual->owned.data());
    } catch (...) {
      part.fail(0, current_error().what());
    }
  };
  steps.emplace_back([combined, start_on_shadow, fixed, result = result_](const Work&) {
    combined();
    Plan plan;
    const Call call = fixed ? result->data_call(plan) : result->size_call(plan, 0);
    return start_on_shadow(call, plan);
  });
  if (!fixed) steps.emplace_back([data, result = result_](const Work& before) { return data(result, before); });
  return steps;
}

void Compressed::decode_at_end() {
  const auto& call = passage_.call;
  const Buffer out = call.out;
  auto& finish = passage_.plan.finish;
  if (op_ == Op::send) return;
  if (op_ == Op::reduce_scatter) {
    finish.emplace_back([transfer = transfer_, out, dtype = dtype_, red = call.red] {
      Combination(*transfer->out, dtype, red).store(out.data, dtype);
    });
    return;
  }
  const auto last = result_ != nullptr ? result_ : transfer_;
  finish.emplace_back([last, out, dtype = dtype_, displs = Counts(call.out_displs.begin(), call.out_displs.end())] {
    decode_parts(*last->out, displs, out.data, dtype);
  });
}

}  // namespace mcr
