// SPDX-License-Identifier: Apache-2.0
// One call that travels compressed.
#pragma once

#include <memory>
#include <vector>

#include "engine/pass.h"
#include "engine/sequence.h"
#include "passes/compress/feedback.h"
#include "passes/compress/transfer.h"

namespace mcr {

/// The op that carries the encoded parts of a call first. What is reduced goes to the ranks that reduce it.
constexpr Op carrier_of(Op op) { return row(op).is(kReduces) ? Op::all_to_all : op; }

/// The elements of an all_reduce that one rank combines, at most.
constexpr int64_t share(int64_t count, int size) { return (count + size - 1) / size; }

/// What a call needs of its pass.
struct CompressContext {
  std::shared_ptr<Group> shadow;
  Slot slot;  // the shadow group's; a copy keeps its communicator, which the group may give up meanwhile
  std::shared_ptr<Sequence> sequence;
  std::shared_ptr<Residual> residual;  // null: no feedback
  int64_t number = 0;                  // of a message whose size goes before it
};

/// Encodes what this rank sends, issues the first sub-call with `next` and, when it is complete, the others on the
/// shadow; decodes at the end. The passage has its slot.
class Compressed {
 public:
  Compressed(Passage& passage, const Next& next, const Codec& codec, CompressContext context);
  Outcome run();

 private:
  using Counts = std::vector<int64_t>;

  Parcels parcels(Counts counts) const;
  int64_t place() const;
  Counts in_counts() const;
  Counts out_counts() const;
  void prepare();
  void encode_parts(const void* data, double* residual = nullptr);
  bool single() const;
  Outcome run_inline();
  std::vector<Steps::Step> steps();
  void decode_at_end();

  Passage& passage_;
  const Next& next_;
  const Codec& codec_;
  const CompressContext context_;
  const Op op_;
  const DType dtype_;
  const bool even_;
  std::shared_ptr<Transfer> transfer_;  // the first, or only, one
  std::shared_ptr<Transfer> result_;    // of all_reduce: the second one
};

}  // namespace mcr
