// SPDX-License-Identifier: Apache-2.0
// One compressed call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "algorithms/schedule.h"
#include "passes/compress/feedback.h"
#include "passes/compress/transfer.h"

namespace mcr {

/// The op that first carries the encoded parts of a call. Data to be reduced goes to the ranks that reduce it.
constexpr Op carrier_of(Op op) { return row(op).is(kReduces) ? Op::all_to_all : op; }

/// The maximum number of elements of an all_reduce that one rank combines.
constexpr int64_t share(int64_t count, int size) { return (count + size - 1) / size; }

/// The algorithm of compressed calls: encode what this rank sends, exchange the sizes if the codec's vary, exchange the
/// encoded parts, decode; an all_reduce combines in between and exchanges the encoded results. Exchanges that wait for
/// an earlier one are late Issues. A function of the call, the rank, the number of ranks and the codec.
class Compressed {
 public:
  /// The schedule owns the objects that the tasks use.
  Compressed(Schedule& schedule, const Call& call, int rank, int size, const Codec& codec);
  Compressed(const Compressed&) = delete;
  Compressed& operator=(const Compressed&) = delete;

  /// Adds these losses to what is encoded, and replaces them by the new ones; null: none. Before build().
  void feed_back(std::shared_ptr<Residual> residual) { residual_ = std::move(residual); }
  /// Adds the tasks. `number` identifies a message that this rank sends after its size, if sends_sizes_first(); its
  /// data is not in the schedule: call sized_data().
  void build(int64_t number);
  /// Whether a single exchange is enough.
  bool single() const { return codec_.fixed() && call_.op != Op::all_reduce; }
  /// For a send with a codec of variable size, once encoded: the call that sends the data after the size.
  Call sized_data() { return transfer_->data_call(); }
  /// Whether only the size is in the schedule.
  bool sends_sizes_first() const { return call_.op == Op::send && !codec_.fixed(); }
  /// The size of this rank's encoded parts, once the first ones are encoded. Of an all_reduce whose sizes depend on the
  /// values, the parts of the first exchange alone: those of the second one are not known yet.
  int64_t sent_bytes() const;

 private:
  using Counts = EncodedParts::Counts;
  using Id = Schedule::Id;

  EncodedParts room_for(Counts counts) const;
  int64_t place() const;
  Counts in_counts() const;
  Counts out_counts() const;
  Counts counts(std::span<const int64_t> values) const { return {values.begin(), values.end(), schedule_.block()}; }
  Counts counts(int parts, int64_t each) const { return {static_cast<std::size_t>(parts), each, schedule_.block()}; }
  Counts shares() const;
  void lay_out();
  Id encode() const;
  Id exchange(Transfer& transfer, int64_t number, Id encoded) const;
  Id combine(Id exchanged) const;
  void decode(Id exchanged) const;
  bool sends() const;

  Schedule& schedule_;
  const Call call_;
  const int rank_, size_;
  const Codec& codec_;
  std::shared_ptr<Residual> residual_;  // null: no feedback
  const bool even_;
  Transfer* transfer_ = nullptr;  // the first or only one
  Transfer* result_ = nullptr;    // for all_reduce: the second one
};

}  // namespace mcr
