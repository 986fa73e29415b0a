// SPDX-License-Identifier: Apache-2.0
// The compression pass: sends calls on floating-point tensors as encoded bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "codecs/codec.h"
#include "engine/pass.h"
#include "engine/stage.h"
#include "passes/compress/compressed.h"
#include "passes/compress/feedback.h"

namespace mcr {

/// A codec for data sizes from some size up, until the next range.
struct CodecRange {
  int64_t from;
  const Codec* codec;  // null: not compressed
};

/// A group's default compression. Equal on all ranks.
struct CompressDefaults {
  const Codec* codec = nullptr;  // for calls that name none; null: these are not compressed
  std::vector<Op> ops;           // the ops to which it applies
  int64_t smallest = 0;          // bytes, as in tables: smaller calls, or of unknown size, are not compressed
  bool automatic = false;        // instead of `codec`, use the codec measured to be the cheapest
  std::map<std::pair<Op, std::string>, std::vector<CodecRange>> measured = {};  // by candidate; ascending, from 0
};

/// Makes schedules of calls (compressed.h) and runs them. The first exchange goes down the chain immediately, on the
/// caller's thread, so that all ranks issue first exchanges in program order. Late exchanges go to the group's stage.
class Compress final : public Pass {
 public:
  Compress(std::shared_ptr<Stage> stage, CompressDefaults defaults)
      : stage_(std::move(stage)), defaults_(std::move(defaults)) {}

  std::string_view name() const override { return "compress"; }
  Outcome handle(Passage& passage, const Next& next) override;
  bool synchronize(std::chrono::nanoseconds limit) override { return stage_->synchronize(limit); }
  /// Forgets all residuals. Called at the same point in the order of calls on all ranks.
  void reset_feedback() { feedback_.reset(); }
  bool automatic() const { return defaults_.automatic; }
  /// The codec for calls to the candidate that name none, or null. `bytes` as returned by message_bytes().
  const Codec* standing(Op op, DType dtype, const std::string& candidate, int64_t bytes) const;

 private:
  const Codec* codec_of(const Passage& passage) const;
  const Codec* named(const Passage& passage) const;
  const Codec* measured(Op op, DType dtype, const std::string& candidate, int64_t bytes) const;
  std::shared_ptr<Residual> residual_of(const Passage& passage, const Coding* coding);
  Outcome run(Passage& passage, const Next& next, Compressed& compressed, const std::shared_ptr<Schedule>& schedule);
  static Outcome run_single(Passage& passage, const Next& next, Compressed& compressed,
                            const std::shared_ptr<Schedule>& schedule);
  Candidate& candidate_of(const Passage& passage, const Codec& codec, bool automatic) const;

  const std::shared_ptr<Stage> stage_;
  const CompressDefaults defaults_;
  Feedback feedback_;
};

}  // namespace mcr
