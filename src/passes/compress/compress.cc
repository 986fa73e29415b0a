// SPDX-License-Identifier: Apache-2.0
#include "passes/compress/compress.h"

#include <algorithm>

#include "engine/dispatch.h"
#include "engine/flatten.h"

namespace mcr {

namespace {

// Below every library's largest tag; more messages than that are not under way between two ranks.
constexpr uint32_t kTags = 1U << 14;

// Why a call that names a codec cannot have it.
std::string objection(const Call& call, const Coding& coding) {
  const std::string codec = "codec '" + coding.text + "': ";
  if (!row(call.op).is(kCompressible))
    return codec + "this operation has no compressed form; expected codec=None or 'none'";
  if (!coding.codec->accepts(call.dtype)) {
    std::string known;
    for (std::size_t i = 0; i < kDTypes.size(); ++i) {
      if (coding.codec->accepts(static_cast<DType>(i)))
        known += (known.empty() ? "" : ", ") + std::string(kDTypes[i].name);
    }
    return codec + "expected a tensor of " + known + ", got " + std::string(row(call.dtype).name) +
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

// That of a call which says how it wants to be compressed.
const Codec* Compress::named(const Passage& passage) const {
  const auto& call = passage.call;
  if (call.coding->codec == nullptr) return nullptr;
  if (call.device.type != DeviceType::CPU) {
    throw refusal(passage, ErrorCode::Unsupported, "codec: expected a tensor on cpu");
  }
  const auto text = objection(call, *call.coding);
  if (text.empty()) return call.coding->codec;
  const bool type = row(call.op).is(kCompressible) && !call.coding->codec->accepts(call.dtype);
  throw refusal(passage, type ? ErrorCode::InvalidType : ErrorCode::InvalidArgument, text);
}

// Null: the call passes on as it is.
const Codec* Compress::codec_of(const Passage& passage) const {
  const auto& call = passage.call;
  const bool asked = call.coding != nullptr && call.coding->automatic;
  if (asked && !defaults_.automatic) {
    throw refusal(passage, ErrorCode::InvalidArgument,
                  "codec 'auto': expected a group with the pass Compress(\"auto\", codecs=[...]), got codec '" +
                      (defaults_.codec == nullptr ? "none" : defaults_.codec->name()) + "'");
  }
  if (call.coding != nullptr && !asked) return named(passage);
  if (call.device.type != DeviceType::CPU) return nullptr;
  static const std::string any;
  const auto bytes = message_bytes(call, passage.group.size());
  const Slot* slot = passage.slot != nullptr || !defaults_.automatic ? passage.slot : &passage.group.choose(call);
  const std::string& candidate = slot == nullptr ? any : slot->name;
  return asked ? measured(call.op, call.dtype, candidate, bytes) : standing(call.op, call.dtype, candidate, bytes);
}

const Codec* Compress::standing(Op op, DType dtype, const std::string& candidate, int64_t bytes) const {
  const auto& ops = defaults_.ops;
  if (std::find(ops.begin(), ops.end(), op) == ops.end() || (bytes >= 0 && bytes < defaults_.smallest)) return nullptr;
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

// That of the call that carries the data, by its encoded size, which all ranks know where they know the call's. With a
// codec that was chosen because it was measured, the backend that it was measured on.
Slot& Compress::slot_of(const Passage& passage, const Codec& codec, bool automatic) const {
  if (passage.slot != nullptr) return *passage.slot;
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
  carrier.size_hint = bytes < 0 ? -1 : codec.capacity(bytes / size_of(dtype), coded_type(dtype));
  return passage.group.choose(carrier);
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

// Messages have no order beyond that of their sizes: each of them has an executor of its own.
std::shared_ptr<Executor> Compress::executor_of(const Passage& passage, const Codec& codec) {
  if (row(passage.call.op).is(kPeer))
    return codec.fixed() ? nullptr : std::make_shared<Executor>(false, &passage.slot->backend.progress);
  const std::lock_guard lock(mutex_);
  auto& executor = executors_[passage.slot->backend.name];
  if (executor == nullptr) executor = std::make_shared<Executor>(true, &passage.slot->backend.progress);
  return executor;
}

Outcome Compress::handle(Passage& passage, const Next& next) {
  const auto* coding = passage.call.coding;
  const Codec* codec = codec_of(passage);
  const bool automatic = defaults_.automatic && (coding == nullptr || coding->automatic);
  passage.call.coding = nullptr;  // later passes must not find it
  // A message without elements is a message still.
  const bool nothing = row(passage.call.op).is(kPeer) && passage.call.out.count == 0;
  if (codec == nullptr || nothing) return next(passage);
  auto residual = residual_of(passage, coding);
  passage.slot = &slot_of(passage, *codec, automatic);
  const auto* slot = shadow_->find(passage.slot->name);
  if (slot == nullptr) throw refusal(passage, ErrorCode::NotInitialized, "the group has given up the backend");
  passage.trail.codec = &codec->name();
  Compressed compressed(passage.call, passage.group.rank(), passage.group.size(), *codec, std::move(residual));
  return run(passage, next, compressed, *slot);
}

Outcome Compress::run(Passage& passage, const Next& next, Compressed& compressed, Slot slot) {
  const auto schedule = std::make_shared<Schedule>();
  compressed.build(*schedule, messages_.fetch_add(1, std::memory_order_relaxed) % kTags);
  if (compressed.single() && !passage.asynchronous) return run_single(passage, next, compressed, schedule);
  const auto start_on_shadow = [this_shadow = shadow_, slot](const std::shared_ptr<Schedule>& memory, Call call) {
    Plan plan;
    plan.owned.push_back(memory);
    auto own = slot;  // a copy keeps its communicator, which the group may give up meanwhile
    return start(*this_shadow, &own, call, plan);
  };
  // The schedule outlives the run that calls this.
  const auto later = [start_on_shadow, memory = std::weak_ptr(schedule)](const Task& task, Requests& requests) {
    requests.push_back(request_of(start_on_shadow(memory.lock(), task.call)));
  };
  const auto first = [&](const Task& task, Requests& requests) {
    Plan plan;
    plan.owned.push_back(schedule);
    Call call = task.call;
    Passage exchange{passage.group, passage.slot, call, plan, true};
    requests.push_back(request_of(next(exchange).work));
  };
  const auto executor = executor_of(passage, compressed.codec());
  const auto run = std::make_shared<Run>(schedule, later);
  if (executor == nullptr) {
    run->begin(first);
  } else {
    executor->submit(run, first);
  }
  passage.trail.sent_bytes = compressed.sent_bytes();
  // The data leaves from memory of its own: the caller does not wait until the receiver has the size and asks for it.
  if (compressed.sends_sizes_first()) start_on_shadow(schedule, compressed.sized_data());
  const auto held = hold(passage, requests_of(executor, run), nullptr);
  if (passage.asynchronous) return {held};
  wait(*held, held->limit(), passage.interrupt);
  return {nullptr, held->source()};
}

// A blocking call of one exchange stays a blocking call.
Outcome Compress::run_single(Passage& passage, const Next& next, Compressed& compressed,
                             const std::shared_ptr<Schedule>& schedule) {
  bool exchanged = false;
  try {
    const int source = run_inline(*schedule, [&](const Task& task) {
      passage.trail.sent_bytes = compressed.sent_bytes();
      Plan plan;
      plan.owned.push_back(schedule);
      Call call = task.call;
      Passage exchange{passage.group, passage.slot, call, plan, false, passage.interrupt};
      const auto outcome = next(exchange);
      exchanged = true;
      return outcome.source;
    });
    unflatten(passage.call, passage.plan);
    passage.plan.conclude();
    return {nullptr, source};
  } catch (const Error& error) {
    if (!exchanged) throw;  // it names the call already
    throw refusal(passage, error);
  }
}

bool Compress::settle(std::chrono::nanoseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const std::lock_guard lock(mutex_);
  return std::all_of(executors_.begin(), executors_.end(), [&](const auto& entry) {
    return entry.second->settle(deadline - std::chrono::steady_clock::now());
  });
}

}  // namespace mcr
