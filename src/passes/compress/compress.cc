// SPDX-License-Identifier: Apache-2.0
#include "passes/compress/compress.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "engine/dispatch.h"
#include "engine/flatten.h"

namespace mcr {

namespace {

// Messages whose sizes are sent first have tags from this number to below its double, which every library has. Fewer
// are in flight between two ranks. Programs hardly use these tags for messages that share the stage: those of devices.
constexpr uint32_t kTags = 1U << 14;

// The ranks that combine the decoded contributions do not apply the factor.
bool has_factor(const Call& call) { return row(call.op).is(kReduces) && call.red == RedOp::PREMUL_SUM; }

// Why a call that names a codec cannot use it.
std::string objection(const Call& call, const Coding& coding) {
  const std::string codec = "codec '" + coding.text + "': ";
  if (!row(call.op).is(kCompressible))
    return codec + "this operation has no compressed form; expected codec=None or 'none'";
  if (has_factor(call)) return codec + "PREMUL_SUM has no compressed form; expected codec=None or 'none'";
  if (!coding.codec->accepts(call.dtype)) {
    std::vector<std::string_view> known;
    for (std::size_t i = 0; i < kDTypes.size(); ++i) {
      if (coding.codec->accepts(static_cast<DType>(i))) known.push_back(kDTypes[i].name);
    }
    return codec + "expected a tensor of " + joined(known) + ", got " + std::string(row(call.dtype).name) +
           ", for which it is not lossless or saves nothing";
  }
  if (coding.feedback.empty()) return {};
  if (call.op != Op::all_reduce) return codec + "feedback is for all_reduce alone";
  if (call.red != RedOp::SUM && call.red != RedOp::AVG) {
    return codec + "feedback: expected SUM or AVG, got " + std::string(name(call.red));
  }
  return {};
}

}  // namespace

// The codec of a call that names one.
const Codec* Compress::named(const Passage& passage) const {
  const auto& call = passage.call;
  if (call.coding->codec == nullptr) return nullptr;
  if (call.device.type != DeviceType::CPU) {
    throw refusal(passage, {ErrorCode::Unsupported, "codec: expected a tensor on cpu"});
  }
  const auto text = objection(call, *call.coding);
  if (text.empty()) return call.coding->codec;
  const bool type = row(call.op).is(kCompressible) && !has_factor(call) && !call.coding->codec->accepts(call.dtype);
  throw refusal(passage, {type ? ErrorCode::InvalidType : ErrorCode::InvalidArgument, text});
}

// Null: the call goes on unchanged.
const Codec* Compress::codec_of(const Passage& passage) const {
  const auto& call = passage.call;
  const bool asked = call.coding != nullptr && call.coding->automatic;
  if (asked && !defaults_.automatic) {
    throw refusal(passage,
                  {ErrorCode::InvalidArgument,
                   "codec 'auto': expected a group with the pass Compress(\"auto\", codecs=[...]), got codec '" +
                       (defaults_.codec == nullptr ? "none" : defaults_.codec->name()) + "'"});
  }
  if (call.coding != nullptr && !asked) return named(passage);
  if (call.device.type != DeviceType::CPU || has_factor(call)) return nullptr;
  static const std::string any;
  const auto bytes = message_bytes(call, passage.group.size());
  const Candidate* candidate =
      passage.candidate != nullptr || !defaults_.automatic ? passage.candidate : &passage.group.choose(call);
  const std::string& name = candidate == nullptr ? any : candidate->name;
  return asked ? measured(call.op, call.dtype, name, bytes) : standing(call.op, call.dtype, name, bytes);
}

const Codec* Compress::standing(Op op, DType dtype, const std::string& candidate, int64_t bytes) const {
  const auto& ops = defaults_.ops;
  if (std::find(ops.begin(), ops.end(), op) == ops.end()) return nullptr;
  // A size that not all ranks know may be a small one.
  if (defaults_.smallest > 0 && bytes < defaults_.smallest) return nullptr;
  if (defaults_.automatic) return measured(op, dtype, candidate, bytes);
  return defaults_.codec != nullptr && defaults_.codec->accepts(dtype) ? defaults_.codec : nullptr;
}

const Codec* Compress::measured(Op op, DType dtype, const std::string& candidate, int64_t bytes) const {
  const auto found = defaults_.measured.find({op, candidate});
  if (found == defaults_.measured.end() || bytes < 0) return nullptr;
  const auto& ranges = found->second;
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), bytes,
                                      [](int64_t size, const CodecRange& range) { return size < range.from; });
  if (after == ranges.begin()) return nullptr;
  const Codec* codec = std::prev(after)->codec;
  return codec != nullptr && codec->accepts(dtype) ? codec : nullptr;
}

// The backend for the call that carries the data: that of the rule for the program's call; else chosen by the encoded
// size, which all ranks know if they know the call's. If the codec was chosen by measurement: the backend on which it
// was measured.
Candidate& Compress::candidate_of(const Passage& passage, const Codec& codec, bool automatic) const {
  if (auto* const candidate = named_candidate(passage)) return *candidate;
  if (automatic) {
    auto& chosen = passage.group.choose(passage.call);
    auto* backend = passage.group.find(chosen.backend.name);
    return backend == nullptr ? chosen : *backend;
  }
  const auto bytes = message_bytes(passage.call, passage.group.size());
  const auto dtype = passage.call.dtype;
  Call carrier;
  carrier.op = carrier_of(passage.call.op);
  carrier.device = passage.call.device;
  carrier.vectored = passage.call.vectored;
  carrier.asynchronous = passage.call.asynchronous;
  carrier.size_hint = bytes < 0 ? -1 : codec.capacity(bytes / size_of(dtype), coded_type(dtype));
  return passage.group.choose_unruled(carrier);
}

std::shared_ptr<Residual> Compress::residual_of(const Passage& passage, const Coding* coding) {
  if (coding == nullptr || coding->feedback.empty()) return nullptr;
  const int64_t count = passage.call.out.count;
  try {
    return feedback_.find(coding->feedback, count, passage.call.dtype, share(count, passage.group.size()));
  } catch (const Error& error) {
    throw refusal(passage, error);
  }
}

Outcome Compress::handle(Passage& passage, const Next& next) {
  const auto* coding = passage.call.coding;
  const Codec* codec = codec_of(passage);
  const bool automatic = defaults_.automatic && (coding == nullptr || coding->automatic);
  passage.call.coding = nullptr;  // consumed: later passes must not see it
  // A message without elements is still sent.
  const bool nothing = row(passage.call.op).is(kPeer) && passage.call.out.count == 0;
  if (codec == nullptr || nothing) return next(passage);
  const auto schedule = Schedule::make();
  std::optional<Compressed> compressed;
  try {  // a user's codec may be unable to tell its capacity
    passage.candidate = &candidate_of(passage, *codec, automatic);
    compressed.emplace(*schedule, passage.call, passage.group.rank(), passage.group.size(), *codec);
  } catch (const Error& error) {
    throw refusal(passage, error);
  }
  if (!stage_->serves(*passage.candidate)) {
    throw refusal(passage, {ErrorCode::NotInitialized, "the group has given up the backend"});
  }
  passage.notes.codec = &codec->name();
  // After what may refuse the call: the residual keeps the size of the first call.
  compressed->feed_back(residual_of(passage, coding));
  return run(passage, next, *compressed, schedule);
}

Outcome Compress::run(Passage& passage, const Next& next, Compressed& compressed,
                      const std::shared_ptr<Schedule>& schedule) {
  compressed.build(compressed.sends_sizes_first() ? stage_->next_message() % kTags + kTags : 0);
  const bool blocking = !passage.asynchronous && !passage.call.any_form;
  if (compressed.single() && blocking) return run_single(passage, next, compressed, schedule);
  bool exchanging = false;
  std::shared_ptr<Work> held;
  try {
    auto request = stage_->submit(passage, schedule, [&](const Task& task, Requests& started) {
      Extras extras;
      extras.owned.push_back(schedule);
      Call call = task.call;
      Passage exchange{passage.group, passage.candidate, call, extras, true};
      exchange.notes.whole = &passage.notes;
      exchanging = true;
      started.push_back(request_of(next(exchange).work));
      exchanging = false;
    });
    passage.notes.sent_bytes = compressed.sent_bytes();
    // The data is sent from memory of its own, so that the caller does not wait until the receiver has got the size and
    // posts its receive.
    if (compressed.sends_sizes_first()) stage_->start_now(passage, compressed.sized_data(), schedule);
    held = hold(passage, std::move(request));
  } catch (const Error& error) {
    if (exchanging) throw;  // the text names the call already
    throw refusal(passage, error);
  }
  if (passage.asynchronous) return {held};
  return {nullptr, wait_for(passage, *held)};
}

// A blocking call with a single exchange stays a blocking call.
Outcome Compress::run_single(Passage& passage, const Next& next, Compressed& compressed,
                             const std::shared_ptr<Schedule>& schedule) {
  bool exchanged = false;
  try {
    const int source = run_inline(*schedule, [&](const Task& task) {
      passage.notes.sent_bytes = compressed.sent_bytes();
      Extras extras;
      extras.owned.push_back(schedule);
      Call call = task.call;
      Passage exchange{passage.group, passage.candidate, call, extras, false, passage.interrupt};
      exchange.notes.whole = &passage.notes;
      const auto outcome = next(exchange);
      exchanged = true;
      return outcome.source;
    });
    unflatten(passage.call, passage.extras);
    passage.extras.conclude();
    return {nullptr, source};
  } catch (const Error& error) {
    if (!exchanged) throw;  // the text names the call already
    throw refusal(passage, error);
  }
}

}  // namespace mcr
