// SPDX-License-Identifier: Apache-2.0
#include "passes/compress/compressed.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/reduce.h"

namespace mcr {

namespace {

// All ranks' contributions to this rank's part, combined in rank order in the codec's type. If a contribution cannot be
// decoded, the error is kept, since this rank must still make its next exchange: the others make it.
class Sum {
 public:
  Sum(Schedule& schedule, const EncodedParts& encoded, DType dtype, RedOp red)
      : encoded_(encoded), coded_(coded_type(dtype)), red_(red), all_(buffer(schedule)), one_(buffer(schedule)) {}

  // Adds the tasks that compute it; returns the last one.
  Schedule::Id build(Schedule& schedule, Schedule::Id exchanged) {
    auto last = decode(schedule, 0, all_, exchanged);
    for (std::size_t i = 1; i < encoded_.size(); ++i) {
      last = decode(schedule, i, one_, last);
      last = schedule.combine(all_, one_, coded_, red_ == RedOp::AVG ? RedOp::SUM : red_, {last});
    }
    return last;
  }

  // Call after the tasks have run. Throws the first error.
  const void* data() {
    if (failure_) throw Error(*failure_);
    if (red_ == RedOp::AVG) divide(all_.data, all_.count, coded_, static_cast<int64_t>(encoded_.size()));
    return all_.data;
  }
  DType dtype() const { return coded_; }
  const Buffer& buffer() const { return all_; }

  void store(void* out, DType dtype) {
    const void* sum = data();
    if (dtype != coded_) return narrow(static_cast<const float*>(sum), all_.count, dtype, out);
    if (all_.count != 0) std::memcpy(out, sum, static_cast<std::size_t>(all_.count * size_of(dtype)));
  }

 private:
  Buffer buffer(Schedule& schedule) const { return schedule.buffer(encoded_.count(0), coded_); }

  Schedule::Id decode(Schedule& schedule, std::size_t i, const Buffer& to, Schedule::Id after) {
    Call operands;
    operands.dtype = coded_;
    operands.out = to;
    const auto decode_one = [this, i, to](Schedule&) {
      try {
        if (!failure_) encoded_.decode(i, to.data, coded_);
      } catch (...) {
        failure_ = current_error();
      }
    };
    return schedule.decode(operands, decode_one, {after});
  }

  const EncodedParts& encoded_;
  const DType coded_;
  const RedOp red_;
  const Buffer all_, one_;
  std::optional<Error> failure_;
};

void decode_parts(const EncodedParts& encoded, std::span<const int64_t> displs, void* out, DType dtype) {
  int64_t next = 0;
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    encoded.decode(i, at(out, displs.empty() ? next : displs[i], dtype), dtype);
    next += encoded.count(i);
  }
}

}  // namespace

Compressed::Compressed(Schedule& schedule, const Call& call, int rank, int size, const Codec& codec)
    : schedule_(schedule),
      call_(call),
      rank_(rank),
      size_(size),
      codec_(codec),
      even_(codec.fixed() && !call.vectored) {
  lay_out();
}

EncodedParts Compressed::room_for(Counts counts) const {
  return {codec_, call_.dtype, std::move(counts), even_ ? place() : 0};
}

// The bytes of the largest encoded part of a call. Equal on all ranks, so that parts padded to this size make a call
// without counts. Fewer elements may take more bytes: a user's codec is free to encode short parts differently.
int64_t Compressed::place() const {
  const auto bytes = [this](int64_t count) { return count == 0 ? 0 : codec_.capacity(count, coded_type(call_.dtype)); };
  if (call_.op == Op::all_reduce) {
    const int64_t each = share(call_.out.count, size_);  // of all parts but the last that is not empty
    return each == 0 ? 0 : std::max(bytes(each), bytes(call_.out.count % each));
  }
  if (call_.op == Op::all_gather) return bytes(call_.in.count);
  return bytes(call_.op == Op::all_to_all ? call_.in.count / size_ : call_.out.count);
}

// The parts of an all_reduce: equal sizes, except at the end.
Compressed::Counts Compressed::shares() const {
  const int64_t each = share(call_.out.count, size_);
  auto result = counts(size_, each);
  for (int i = 0; i < size_; ++i) {
    result[static_cast<std::size_t>(i)] = std::clamp(call_.out.count - i * each, int64_t{0}, each);
  }
  return result;
}

Compressed::Counts Compressed::in_counts() const {
  if (call_.op == Op::all_reduce) return shares();
  if (call_.op == Op::all_gather) return counts(1, call_.in.count);
  if (call_.vectored) return counts(call_.in_counts);
  return counts(size_, call_.in.count / size_);
}

Compressed::Counts Compressed::out_counts() const {
  if (call_.op == Op::all_reduce) return counts(size_, in_counts()[static_cast<std::size_t>(rank_)]);
  if (call_.op == Op::reduce_scatter) return counts(size_, call_.out.count);
  if (call_.vectored) return counts(call_.out_counts);
  return counts(size_, call_.op == Op::all_gather ? call_.in.count : call_.out.count / size_);
}

bool Compressed::sends() const { return (row(call_.op).is(kRooted) && call_.root == rank_) || call_.op == Op::send; }

void Compressed::lay_out() {
  auto* block = schedule_.block();
  transfer_ = &schedule_.make_object<Transfer>(carrier_of(call_.op), call_, !even_, block, sends());
  if (row(call_.op).extent == Extent::Same && call_.op != Op::all_reduce) {
    transfer_->out.emplace(room_for(counts(1, call_.out.count)));
    return;
  }
  transfer_->in.emplace(room_for(in_counts()));
  transfer_->out.emplace(room_for(out_counts()));
  if (call_.op != Op::all_reduce) return;
  result_ = &schedule_.make_object<Transfer>(Op::all_gather, call_, !even_, block);
  result_->in.emplace(room_for(counts(1, transfer_->out->count(0))));
  result_->out.emplace(room_for(in_counts()));
}

int64_t Compressed::sent_bytes() const {
  if (!transfer_->in) return sends() ? transfer_->sent_bytes() : 0;
  return transfer_->sent_bytes() + (result_ == nullptr || !codec_.fixed() ? 0 : result_->sent_bytes());
}

void Compressed::build(int64_t number) {
  Id exchanged = exchange(*transfer_, number, encode());
  if (call_.op == Op::all_reduce) exchanged = exchange(*result_, 0, combine(exchanged));
  if (call_.op != Op::send) decode(exchanged);
}

// No later task reads the caller's tensors, so input and output may share memory.
Compressed::Id Compressed::encode() const {
  Call operands = call_;
  operands.in = operands.in.data == nullptr ? call_.out : call_.in;
  operands.out = {};
  if (!transfer_->in) {
    return schedule_.encode(operands,
                            [transfer = transfer_, out = call_.out, dtype = call_.dtype, sends = sends()](Schedule&) {
                              if (sends) transfer->out->encode(0, out.data, dtype);
                            });
  }
  const bool reduces = call_.op == Op::all_reduce;
  auto displs = counts(reduces ? std::span<const int64_t>() : call_.in_displs);
  auto encode = [transfer = transfer_, data = reduces ? call_.out.data : call_.in.data, dtype = call_.dtype,
                 displs = std::move(displs), residual = residual_](Schedule&) {
    auto& in = *transfer->in;
    int64_t next = 0;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const int64_t place = displs.empty() ? next : displs[i];
      in.encode(i, at(data, place, dtype), dtype, residual == nullptr ? nullptr : residual->sent.data() + place);
      next += in.count(i);
    }
  };
  return schedule_.encode(operands, std::move(encode));
}

// Calls that depend on sizes are set when the sizes have arrived.
Compressed::Id Compressed::exchange(Transfer& transfer, int64_t number, Id encoded) const {
  if (codec_.fixed()) return schedule_.issue(transfer.data_call(), {encoded});
  Call like;
  like.op = transfer.op;
  const Id first = static_cast<Id>(schedule_.tasks().size()) + 1;
  const auto prepare = [&transfer, number, first](Schedule& made) { made.set_call(first, transfer.size_call(number)); };
  const Id issued = schedule_.issue(like, {schedule_.encode(like, prepare, {encoded})});
  if (sends_sizes_first()) return issued;
  const auto sized = [&transfer, data = issued + 2](Schedule& made) {
    transfer.take_sizes(made.source());
    made.set_call(data, transfer.data_call());
  };
  return schedule_.issue(like, {schedule_.encode(like, sized, {issued})});
}

// A failure here becomes a decoding failure on every rank.
Compressed::Id Compressed::combine(Id exchanged) const {
  auto& sum = schedule_.make_object<Sum>(schedule_, *transfer_->out, call_.dtype, call_.red);
  const Id summed = sum.build(schedule_, exchanged);
  Call operands;
  operands.dtype = sum.dtype();
  operands.in = sum.buffer();
  auto encode = [&sum, result = result_, residual = residual_, rank = rank_](Schedule&) {
    auto& part = *result->in;
    try {
      part.encode(0, sum.data(), sum.dtype(), residual == nullptr ? nullptr : residual->owned.data());
    } catch (...) {
      part.fail(0, current_error().what(), rank);
    }
  };
  return schedule_.encode(operands, std::move(encode), {summed});
}

void Compressed::decode(Id exchanged) const {
  Call operands = call_;
  operands.in = {};
  if (call_.op == Op::reduce_scatter) {
    auto& sum = schedule_.make_object<Sum>(schedule_, *transfer_->out, call_.dtype, call_.red);
    const Id summed = sum.build(schedule_, exchanged);
    const auto store = [&sum, out = call_.out, dtype = call_.dtype](Schedule&) { sum.store(out.data, dtype); };
    schedule_.copy_by(call_.out, sum.buffer(), sum.dtype(), store, {summed});
    return;
  }
  const auto* last = result_ != nullptr ? result_ : transfer_;
  auto decode = [last, out = call_.out, dtype = call_.dtype, displs = counts(call_.out_displs)](Schedule&) {
    decode_parts(*last->out, displs, out.data, dtype);
  };
  schedule_.decode(operands, std::move(decode), {exchanged});
}

}  // namespace mcr
