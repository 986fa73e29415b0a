// SPDX-License-Identifier: Apache-2.0
// One call that travels compressed.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "algorithms/schedule.h"
#include "passes/compress/feedback.h"
#include "passes/compress/transfer.h"

namespace mcr {

/// The op that carries the encoded parts of a call first. What is reduced goes to the ranks that reduce it.
constexpr Op carrier_of(Op op) { return row(op).is(kReduces) ? Op::all_to_all : op; }

/// The elements of an all_reduce that one rank combines, at most.
constexpr int64_t share(int64_t count, int size) { return (count + size - 1) / size; }

/// The algorithm of compressed calls: encode what this rank sends, exchange the sizes if the codec's vary, exchange the
/// encoded parts, decode; of an all_reduce, combine in between and exchange the encoded results. The exchanges that
/// wait for an earlier one are late Issues. A function of the call, the rank, the number of ranks and the codec.
class Compressed {
 public:
  Compressed(const Call& call, int rank, int size, const Codec& codec, std::shared_ptr<Residual> residual = nullptr);
  Compressed(const Compressed&) = delete;
  Compressed& operator=(const Compressed&) = delete;

  /// Adds the tasks. `number` marks a message whose size goes before it. The data of a message that this rank sends
  /// behind its size is not in the schedule: sized_data() has it.
  void build(Schedule& schedule, int64_t number);
  /// Whether one exchange does it all.
  bool single() const { return codec_.fixed() && call_.op != Op::all_reduce; }
  /// Of a send with a codec of variable size, once it is encoded: the call that follows the size.
  Call sized_data() { return transfer_->data_call(); }
  /// Whether only the size is in the schedule.
  bool sends_sizes_first() const { return call_.op == Op::send && !codec_.fixed(); }
  const Codec& codec() const { return codec_; }
  /// Bytes of this rank's encoded parts, once they are encoded.
  int64_t sent_bytes() const;

 private:
  using Counts = std::vector<int64_t>;
  using Id = Schedule::Id;

  Parcels parcels(Counts counts) const;
  int64_t place() const;
  Counts in_counts() const;
  Counts out_counts() const;
  void lay_out();
  std::function<void(Schedule&)> encoder() const;
  Id exchange(Schedule& schedule, const std::shared_ptr<Transfer>& transfer, int64_t number, Id encoded) const;
  Id combine(Schedule& schedule, Id exchanged) const;
  void decode(Schedule& schedule, Id exchanged) const;
  bool sends() const;

  const Call call_;
  const int rank_, size_;
  const Codec& codec_;
  const std::shared_ptr<Residual> residual_;  // null: no feedback
  const bool even_;
  std::shared_ptr<Transfer> transfer_;  // the first, or only, one
  std::shared_ptr<Transfer> result_;    // of all_reduce: the second one
};

}  // namespace mcr
