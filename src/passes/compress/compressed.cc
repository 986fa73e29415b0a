// SPDX-License-Identifier: Apache-2.0
#include "passes/compress/compressed.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/reduce.h"

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

Compressed::Compressed(const Call& call, int rank, int size, const Codec& codec, std::shared_ptr<Residual> residual)
    : call_(call),
      rank_(rank),
      size_(size),
      codec_(codec),
      residual_(std::move(residual)),
      even_(codec.fixed() && !call.vectored) {
  lay_out();
}

Parcels Compressed::parcels(Counts counts) const {
  return {codec_, call_.dtype, std::move(counts), even_ ? place() : 0};
}

// The largest part of a call whose parts differ by the size of the last one at most: of one size on all ranks, so that
// places of it make a call without counts.
int64_t Compressed::place() const {
  if (call_.op == Op::all_reduce) return share(call_.out.count, size_);
  if (call_.op == Op::all_gather) return call_.in.count;
  return call_.op == Op::all_to_all ? call_.in.count / size_ : call_.out.count;
}

Compressed::Counts Compressed::in_counts() const {
  if (call_.op == Op::all_reduce) return shares(call_.out.count, size_);
  if (call_.op == Op::all_gather) return {call_.in.count};
  if (call_.vectored) return {call_.in_counts.begin(), call_.in_counts.end()};
  return Counts(static_cast<std::size_t>(size_), call_.in.count / size_);
}

Compressed::Counts Compressed::out_counts() const {
  const auto size = static_cast<std::size_t>(size_);
  if (call_.op == Op::all_reduce) return Counts(size, in_counts()[static_cast<std::size_t>(rank_)]);
  if (call_.op == Op::reduce_scatter) return Counts(size, call_.out.count);
  if (call_.vectored) return {call_.out_counts.begin(), call_.out_counts.end()};
  return Counts(size, call_.op == Op::all_gather ? call_.in.count : call_.out.count / size_);
}

bool Compressed::sends() const { return (row(call_.op).is(kRooted) && call_.root == rank_) || call_.op == Op::send; }

void Compressed::lay_out() {
  transfer_ = std::make_shared<Transfer>(carrier_of(call_.op), call_, !even_, sends());
  if (row(call_.op).extent == Extent::Same && call_.op != Op::all_reduce) {
    transfer_->out.emplace(parcels({call_.out.count}));
    return;
  }
  transfer_->in.emplace(parcels(in_counts()));
  transfer_->out.emplace(parcels(out_counts()));
  if (call_.op != Op::all_reduce) return;
  result_ = std::make_shared<Transfer>(Op::all_gather, call_, !even_);
  result_->in.emplace(parcels({transfer_->out->count(0)}));
  result_->out.emplace(parcels(in_counts()));
}

int64_t Compressed::sent_bytes() const {
  if (!transfer_->in) return sends() ? transfer_->sent_bytes() : 0;
  return transfer_->sent_bytes() + (result_ == nullptr ? 0 : result_->in->bytes());
}

void Compressed::build(Schedule& schedule, int64_t number) {
  schedule.own(transfer_);
  schedule.own(result_);
  Call operands = call_;
  operands.in = operands.in.data == nullptr ? call_.out : call_.in;
  operands.out = {};
  const Id encoded = schedule.encode(operands, encoder());
  Id exchanged = exchange(schedule, transfer_, number, encoded);
  if (call_.op == Op::all_reduce) exchanged = exchange(schedule, result_, 0, combine(schedule, exchanged));
  if (call_.op != Op::send) decode(schedule, exchanged);
}

// Encoding leaves the caller's tensors alone from here on, so that input and output may be the same memory.
std::function<void(Schedule&)> Compressed::encoder() const {
  if (!transfer_->in) {
    return [transfer = transfer_, out = call_.out, dtype = call_.dtype, sends = sends()](Schedule&) {
      if (sends) transfer->out->encode(0, out.data, dtype);
    };
  }
  const bool reduces = call_.op == Op::all_reduce;
  auto displs = reduces ? Counts() : Counts(call_.in_displs.begin(), call_.in_displs.end());
  return [transfer = transfer_, data = reduces ? call_.out.data : call_.in.data, dtype = call_.dtype,
          displs = std::move(displs), residual = residual_](Schedule&) {
    auto& in = *transfer->in;
    int64_t next = 0;
    for (std::size_t i = 0; i < in.parts(); ++i) {
      const int64_t place = displs.empty() ? next : displs[i];
      in.encode(i, at(data, place, dtype), dtype, residual == nullptr ? nullptr : residual->sent.data() + place);
      next += in.count(i);
    }
  };
}

// Calls that depend on sizes are set when the sizes are there.
Compressed::Id Compressed::exchange(Schedule& schedule, const std::shared_ptr<Transfer>& transfer, int64_t number,
                                    Id encoded) const {
  if (codec_.fixed()) return schedule.issue(transfer->data_call(), {encoded});
  Call like;
  like.op = transfer->op;
  const Id first = static_cast<Id>(schedule.tasks().size()) + 1;
  const auto prepare = [transfer, number, first](Schedule& made) { made.set_call(first, transfer->size_call(number)); };
  const Id issued = schedule.issue(like, {schedule.encode(like, prepare, {encoded})});
  if (sends_sizes_first()) return issued;
  const auto sized = [transfer, data = issued + 2](Schedule& made) {
    transfer->take_sizes(made.source());
    made.set_call(data, transfer->data_call());
  };
  return schedule.issue(like, {schedule.encode(like, sized, {issued})});
}

// What fails here must not keep this rank from the next call: the others make it.
Compressed::Id Compressed::combine(Schedule& schedule, Id exchanged) const {
  Call operands;
  operands.dtype = call_.dtype;
  operands.in = {transfer_->out->data(), transfer_->out->count(0) * size_};
  const auto combined = [transfer = transfer_, result = result_, dtype = call_.dtype, red = call_.red,
                         residual = residual_](Schedule&) {
    auto& part = *result->in;
    try {
      const Combination sum(*transfer->out, dtype, red);
      part.encode(0, sum.data(), sum.dtype(), residual == nullptr ? nullptr : residual->owned.data());
    } catch (...) {
      part.fail(0, current_error().what());
    }
  };
  return schedule.decode(operands, combined, {exchanged});
}

void Compressed::decode(Schedule& schedule, Id exchanged) const {
  Call operands = call_;
  operands.in = {};
  if (call_.op == Op::reduce_scatter) {
    const auto store = [transfer = transfer_, out = call_.out, dtype = call_.dtype, red = call_.red](Schedule&) {
      Combination(*transfer->out, dtype, red).store(out.data, dtype);
    };
    schedule.decode(operands, store, {exchanged});
    return;
  }
  const auto last = result_ != nullptr ? result_ : transfer_;
  const auto decode = [last, out = call_.out, dtype = call_.dtype,
                       displs = Counts(call_.out_displs.begin(), call_.out_displs.end())](Schedule&) {
    decode_parts(*last->out, displs, out.data, dtype);
  };
  schedule.decode(operands, decode, {exchanged});
}

}  // namespace mcr
