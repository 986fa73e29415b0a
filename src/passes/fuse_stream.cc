// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse_stream.h"

#include <algorithm>
#include <utility>

#include "dispatch.h"

namespace mcr {

namespace {

// Equal numbers mean: one collective can do the work of both. Equal on all ranks, as all of it is.
int64_t kind_of(const Call& call, const Slot& slot) {
  int64_t number = call.root;
  number = (number << 8) | static_cast<int64_t>(call.op);
  number = (number << 8) | static_cast<int64_t>(call.dtype);
  number = (number << 8) | static_cast<int64_t>(call.red);
  return (number << 8) | slot.variant;
}

uint64_t mix(uint64_t digest, int64_t value) {
  constexpr uint64_t kPrime = 0x9E3779B97F4A7C15ULL;
  return (digest ^ static_cast<uint64_t>(value)) * kPrime + (digest >> 29);
}

}  // namespace

int64_t fuse_bytes(const Call& call) { return std::max(call.in.count, call.out.count) * size_of(call.dtype); }

FuseStream::FuseStream(std::shared_ptr<Group> shadow, const std::string& backend, FuseLimits limits)
    : shadow_(std::move(shadow)), backend_(backend), limits_(limits), pool_(limits.buffer_bytes) {}

std::shared_ptr<FusePart> FuseStream::join(const Call& call, Slot& slot) {
  auto part = std::make_shared<FusePart>();
  part->call = call;
  part->slot = &slot;
  part->kind = kind_of(call, slot);
  part->since = Clock::now();
  const auto bytes = fuse_bytes(call);
  const std::lock_guard lock(mutex_);
  if (broken_) throw Error(broken_->code(), broken_->what());
  if (bytes_[part->kind] + bytes > limits_.buffer_bytes) {
    wanted_ = made();
    step();
  }
  held_.push_back(part);
  part->number = made();
  auto& total = bytes_[part->kind];
  total += bytes;
  if (total >= limits_.buffer_bytes) wanted_ = part->number;
  ++statistics_.calls;
  set_pending(true);
  step();
  return part;
}

void FuseStream::drive() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) step();
}

void FuseStream::hurry(const FusePart& part) {
  if (part.gone.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  wanted_ = std::max(wanted_, part.number);
  step();
}

void FuseStream::hurry() {
  const std::lock_guard lock(mutex_);
  wanted_ = made();
  step();
}

FuseStatistics FuseStream::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

// ---- the agreement

bool FuseStream::due() const {
  if (held_.empty() || broken_) return false;
  return wanted_ > flushed_ || Clock::now() - held_.front()->since >= limits_.hold;
}

void FuseStream::step() {
  try {
    for (;;) {
      if (round_) {
        if (!round_->poll()) return;
        round_->rethrow();
        const int64_t agreed = *answer_;
        round_.reset();
        flush(agreed - flushed_);
      } else if (due()) {
        ask();
      } else {
        return;
      }
    }
  } catch (const Error& error) {
    break_off(error);
  }
}

void FuseStream::ask() {
  if (shadow_->size() == 1) return flush(static_cast<int64_t>(held_.size()));
  Plan plan;
  auto* number = static_cast<int64_t*>(plan.allocate({}, sizeof(int64_t)));
  *number = made();
  Call call;
  call.op = Op::all_reduce;
  call.dtype = DType::Long;
  call.red = RedOp::MIN;
  call.out = {number, 1};
  answer_ = number;
  round_ = start(*shadow_, shadow_->find(backend_), call, plan);
}

// ---- the flush

// Buffers fill up in the order of the calls, each kind its own; what is left goes in the order of the kinds' numbers.
void FuseStream::flush(int64_t count) {
  std::map<int64_t, Parts> open;
  std::map<int64_t, int64_t> filled;
  for (; count > 0; --count) {
    const auto part = held_.front();
    held_.pop_front();
    ++flushed_;
    const auto bytes = fuse_bytes(part->call);
    bytes_[part->kind] -= bytes;
    if (filled[part->kind] + bytes > limits_.buffer_bytes) {
      send(std::exchange(open[part->kind], {}));
      filled[part->kind] = 0;
    }
    filled[part->kind] += bytes;
    open[part->kind].push_back(part);
  }
  for (auto& [kind, parts] : open) send(std::move(parts));
  if (held_.empty()) set_pending(false);
}

void FuseStream::send(Parts parts) {
  if (parts.empty()) return;
  ++statistics_.flushes;
  for (const auto& part : parts) statistics_.bytes += fuse_bytes(part->call);
  statistics_.digest = mix(mix(statistics_.digest, parts.front()->kind), parts.back()->number);
  std::shared_ptr<Work> carrier;
  std::optional<Error> failure;
  try {
    carrier = carry(parts);
  } catch (const Error& error) {
    failure = error;
  }
  for (const auto& part : parts) {
    part->carrier = carrier;
    part->failure = failure;
    part->gone.store(true, std::memory_order_release);
  }
}

std::shared_ptr<Work> FuseStream::carry(const Parts& parts) {
  Plan plan;
  Slot* slot = parts.front()->slot;
  if (parts.size() == 1) {
    Call call = parts.front()->call;
    return start(*shadow_, slot, call, plan);
  }
  std::vector<Call> calls;
  for (const auto& part : parts) calls.push_back(part->call);
  Call call = fuse_calls(calls, shadow_->rank(), shadow_->size(), pool_, plan);
  return start(*shadow_, slot, call, plan);
}

// Nobody can tell any more what the other ranks flush: all that is held fails, and later calls are refused.
void FuseStream::break_off(const Error& error) {
  broken_ = error;
  round_.reset();
  for (const auto& part : held_) {
    part->failure = error;
    part->gone.store(true, std::memory_order_release);
  }
  held_.clear();
  bytes_.clear();
  set_pending(false);
}

}  // namespace mcr
