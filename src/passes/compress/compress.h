// SPDX-License-Identifier: Apache-2.0
// The compression pass: calls on floating-point tensors travel as encoded bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "codecs/codec.h"
#include "engine/executor.h"
#include "engine/pass.h"
#include "passes/compress/compressed.h"
#include "passes/compress/feedback.h"

namespace mcr {

/// The codec of messages from some size on, up to the next range.
struct CodecRange {
  int64_t from;
  const Codec* codec;  // null: not compressed
};

/// What a group compresses by itself. Equal on all ranks.
struct CompressDefaults {
  const Codec* codec = nullptr;  // of calls that name none; null: these are not compressed
  std::vector<Op> ops;           // for which it stands
  int64_t smallest = 0;          // bytes, by which tables go: smaller calls are not compressed
  bool automatic = false;        // not `codec` but what was measured to be the cheapest
  std::map<std::pair<Op, std::string>, std::vector<CodecRange>> measured = {};  // by candidate; ascending, from 0 on
};

/// Makes schedules of calls (compressed.h) and runs them. The first exchange goes down the chain at once, on the
/// caller's thread, so that all ranks issue these in the order of the program. Late exchanges go to the shadow group,
/// whose communicators only this pass uses, in the executor's order: that of the calls, whichever of them completes
/// first.
class Compress final : public Pass {
 public:
  Compress(std::shared_ptr<Group> shadow, CompressDefaults defaults)
      : shadow_(std::move(shadow)), defaults_(std::move(defaults)) {}

  std::string_view name() const override { return "compress"; }
  Outcome handle(Passage& passage, const Next& next) override;
  bool settle(std::chrono::nanoseconds limit) override;
  /// Forgets all residuals. In the same place of the order of calls on all ranks.
  void reset_feedback() { feedback_.reset(); }
  bool automatic() const { return defaults_.automatic; }
  /// The codec of calls to the candidate that name none, or null. `bytes` as message_bytes() has it.
  const Codec* standing(Op op, DType dtype, const std::string& candidate, int64_t bytes) const;

 private:
  const Codec* codec_of(const Passage& passage) const;
  const Codec* named(const Passage& passage) const;
  const Codec* measured(Op op, DType dtype, const std::string& candidate, int64_t bytes) const;
  std::shared_ptr<Residual> residual_of(const Passage& passage, const Coding* coding);
  std::shared_ptr<Executor> executor_of(const Passage& passage, const Codec& codec);
  Outcome run(Passage& passage, const Next& next, Compressed& compressed, Slot slot);
  static Outcome run_single(Passage& passage, const Next& next, Compressed& compressed,
                            const std::shared_ptr<Schedule>& schedule);
  Slot& slot_of(const Passage& passage, const Codec& codec, bool automatic) const;

  const std::shared_ptr<Group> shadow_;
  const CompressDefaults defaults_;
  Feedback feedback_;
  std::atomic<uint32_t> messages_{0};
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Executor>> executors_;  // by backend; guarded by mutex_
};

}  // namespace mcr
