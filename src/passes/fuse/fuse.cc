// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse/fuse.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/candidate_name.h"
#include "base/immortal.h"
#include "choose/decision.h"
#include "engine/dispatch.h"

namespace mcr {

namespace {

// The backend's part of a held call: complete when the call that carries it is.
class Fused final : public DeferredRequest {
 public:
  Fused(std::shared_ptr<FuseStream> stream, std::shared_ptr<FusePart> part)
      : DeferredRequest(part), stream_(std::move(stream)), part_(std::move(part)) {}

  void expedite() override { stream_->expedite(*part_); }
  void abandon() override {
    DeferredRequest::abandon();
    stream_->abandoned();
  }

 private:
  bool step() override {
    if (!part_->given()) stream_->drive();
    return DeferredRequest::step();
  }

  std::shared_ptr<FuseStream> stream_;
  std::shared_ptr<FusePart> part_;
};

bool fusible(const Call& call) {
  // The calls of a buffer have one reduction, but each PREMUL_SUM may have a factor of its own.
  if (row(call.op).is(kReduces) && call.red == RedOp::PREMUL_SUM) return false;
  // A call that names a codec goes unchanged to the compression pass.
  return row(call.op).is(kFusible) && !call.vectored && call.coding == nullptr && call.device.type == DeviceType::CPU;
}

// The stream of a set of backends. An earlier pass of the group may still use it, for calls that a pass before it
// holds.
std::shared_ptr<FuseStream> stream_of(const std::shared_ptr<Group>& shadow, const std::string& set) {
  struct Known {
    std::mutex mutex;
    std::map<std::pair<const Group*, std::string>, std::weak_ptr<FuseStream>> streams;  // which keep their groups
  };
  static auto& known = immortal<Known>();
  const std::lock_guard lock(known.mutex);
  std::erase_if(known.streams, [](const auto& each) { return each.second.expired(); });
  auto& entry = known.streams[{shadow.get(), set}];
  auto stream = entry.lock();
  if (stream == nullptr || !stream->renew()) entry = stream = std::make_shared<FuseStream>(shadow);
  return stream;
}

}  // namespace

Fuse::Fuse(std::shared_ptr<Group> shadow, const std::map<std::string, FuseLimits>& limits)
    : shadow_(std::move(shadow)) {
  std::map<std::string, Holder> holders;  // by set
  for (const auto& [backend, set] : sharing(shadow_->backends())) {
    auto& holder = holders[set];
    if (holder.stream == nullptr) {
      holder.stream = streams_.emplace_back(stream_of(shadow_, set));
      holder.rest = holder.stream->add_pass();
    }
    holder.limits = limits.at(backend);
    largest_buffer_ = std::max(largest_buffer_, holder.limits.buffer_bytes);
    holders_.emplace(backend, holder);
  }
}

// A call that names no backend goes to that of its rule, else to the best one for a full buffer, whose size every rank
// knows.
Candidate* Fuse::candidate_of(const Passage& passage) {
  if (const auto* candidate = named_candidate(passage)) return shadow_->find(candidate->name);
  Call full = passage.call;
  full.size_hint = largest_buffer_;
  return &shadow_->choose_unruled(full);
}

Outcome Fuse::handle(Passage& passage, const Next& next) {
  // While this thread is in a blocking call, no further calls will join.
  if (!passage.asynchronous && Executor::any()) {
    for (const auto& stream : streams_) stream->expedite();
  }
  // On other ranks a call of any form may be a blocking one, which does not join.
  if (!passage.asynchronous || passage.call.any_form || !fusible(passage.call)) return next(passage);
  const auto inside = stay_in(*shadow_, passage);
  Candidate* candidate = candidate_of(passage);
  Candidate* own = candidate == nullptr ? nullptr : passage.group.find(candidate->name);
  if (own == nullptr || Decision::of(*candidate->communicator, passage.call).form == Form::Unsupported)
    return next(passage);
  const auto holder = holders_.find(candidate->backend.name);
  if (holder == holders_.end()) return next(passage);
  const auto& [stream, rest, limits] = holder->second;
  // The flush that a pass behind this one waits in cannot flush its call. Equal on all ranks, as they are in one flush.
  // A step of a call may run in a flush on this rank alone, so that none of its calls is held.
  if (Executor::in_step() || stream->flushes_here()) return next(passage);
  if (larger_side_bytes(passage.call) > limits.largest_bytes) return next(passage);
  passage.candidate = own;
  passage.notes.fused = true;
  try {
    auto memory = rest.chain == nullptr ? nullptr : memory_of(passage.extras);
    auto part = stream->join(passage.call, *candidate, limits, rest, std::move(memory));
    return {hold(passage, std::make_unique<Fused>(stream, std::move(part)))};
  } catch (const Error& error) {
    throw refusal(passage, error);
  }
}

bool Fuse::synchronize(std::chrono::nanoseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  return std::ranges::all_of(
      streams_, [&](const auto& stream) { return stream->synchronize(deadline - std::chrono::steady_clock::now()); });
}

bool Fuse::broken() const {
  return std::ranges::any_of(streams_, [](const auto& stream) { return stream->broken(); });
}

FuseStatistics Fuse::statistics() const {
  FuseStatistics sum;
  for (const auto& stream : streams_) {
    const auto one = stream->statistics();
    sum.calls += one.calls;
    sum.flushes += one.flushes;
    sum.bytes += one.bytes;
    sum.digest ^= one.digest;
  }
  return sum;
}

}  // namespace mcr
