// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse_stream.h"

#include <algorithm>
#include <thread>
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
  part->kind = kind_of(call, slot);
  const auto bytes = fuse_bytes(call);
  const std::lock_guard lock(mutex_);
  if (broken_) throw Error(broken_->code(), broken_->what());
  auto& kind = kinds_[part->kind];
  kind.slot = &slot;
  if (leads() && kind.bytes + bytes > limits_.buffer_bytes) cut(kind, part->kind);
  if (kind.held.empty()) kind.since = Clock::now();
  kind.held.push_back(part);
  kind.bytes += bytes;
  ++held_;
  set_pending(true);
  ++statistics_.calls;
  if (!leads()) {
    listen();
    follow();
  } else if (kind.bytes >= limits_.buffer_bytes) {
    cut(kind, part->kind);
  }
  return part;
}

void FuseStream::drive() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || held_ == 0) return;
  if (leads()) {
    cut_expired();
  } else {
    follow();
  }
}

void FuseStream::hurry(const FusePart& part) {
  if (part.gone.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  if (part.gone.load(std::memory_order_relaxed)) return;
  if (leads()) {
    cut(kinds_[part.kind], part.kind);
  } else {
    follow();
  }
}

void FuseStream::hurry() {
  const std::lock_guard lock(mutex_);
  if (leads()) {
    for (auto& [number, kind] : kinds_) cut(kind, number);
  } else {
    follow();
  }
}

bool FuseStream::settle(std::chrono::nanoseconds limit) {
  const auto deadline = Clock::now() + limit;
  for (;;) {
    hurry();
    {
      const std::lock_guard lock(mutex_);
      if (held_ == 0) return true;
    }
    if (Clock::now() >= deadline) return false;
    std::this_thread::yield();
  }
}

FuseStatistics FuseStream::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

// ---- rank 0

void FuseStream::cut_expired() {
  const auto now = Clock::now();
  for (auto& [number, kind] : kinds_) {
    if (!kind.held.empty() && now - kind.since >= limits_.hold) cut(kind, number);
  }
}

void FuseStream::cut(Kind& kind, int64_t number) {
  if (kind.held.empty() || broken_) return;
  try {
    if (shadow_->size() > 1) announce(kind, number);
  } catch (const Error& error) {
    return break_off(error);
  }
  flush(kind, number, kind.held.size());
}

// The call that moves an announcement from rank 0 to the others, and its memory, which the plan owns.
std::pair<Call, FuseStream::Announcement*> FuseStream::announcement(Plan& plan) const {
  auto* memory = static_cast<Announcement*>(plan.allocate(sizeof(Announcement)));
  *memory = {0, 0};
  Call call;
  call.op = Op::broadcast;
  call.dtype = DType::Long;
  call.out = {memory, sizeof(Announcement) / sizeof(int64_t)};
  return {call, memory};
}

void FuseStream::announce(Kind& kind, int64_t number) {
  Plan plan;
  auto [call, memory] = announcement(plan);
  *memory = {number, kind.flushed + static_cast<int64_t>(kind.held.size())};
  start(*shadow_, shadow_->find(backend_), call, plan);
}

// ---- the other ranks

void FuseStream::listen() {
  if (listening_ || held_ == 0 || broken_) return;
  try {
    Plan plan;
    auto [call, memory] = announcement(plan);
    announced_ = memory;
    listening_ = start(*shadow_, shadow_->find(backend_), call, plan);
  } catch (const Error& error) {
    break_off(error);
  }
}

void FuseStream::follow() {
  while (listening_ && listening_->poll()) {
    try {
      listening_->rethrow();
    } catch (const Error& error) {
      return break_off(error);
    }
    const auto [number, end] = *announced_;
    auto& kind = kinds_[number];
    const auto count = end - kind.flushed;
    if (std::cmp_less(kind.held.size(), count)) return;  // rank 0 is ahead: these calls are still to come here
    listening_.reset();
    flush(kind, number, static_cast<std::size_t>(count));
    listen();
  }
}

// ---- all ranks

void FuseStream::flush(Kind& kind, int64_t number, std::size_t count) {
  const auto end = kind.held.begin() + static_cast<std::ptrdiff_t>(count);
  const std::vector<std::shared_ptr<FusePart>> parts(kind.held.begin(), end);
  kind.held.erase(kind.held.begin(), end);
  kind.since = Clock::now();
  kind.flushed += static_cast<int64_t>(count);
  held_ -= static_cast<int64_t>(count);
  if (held_ == 0) set_pending(false);
  int64_t bytes = 0;
  for (const auto& part : parts) bytes += fuse_bytes(part->call);
  kind.bytes -= bytes;
  ++statistics_.flushes;
  statistics_.bytes += bytes;
  statistics_.digest = mix(mix(statistics_.digest, number), kind.flushed);
  std::shared_ptr<Work> carrier;
  std::optional<Error> failure;
  try {
    carrier = carry(parts, *kind.slot);
  } catch (const Error& error) {
    failure = error;
  }
  for (const auto& part : parts) {
    part->carrier = carrier;
    part->failure = failure;
    part->gone.store(true, std::memory_order_release);
  }
}

std::shared_ptr<Work> FuseStream::carry(const std::vector<std::shared_ptr<FusePart>>& parts, Slot& slot) {
  Plan plan;
  if (parts.size() == 1) {
    Call call = parts.front()->call;
    return start(*shadow_, &slot, call, plan);
  }
  std::vector<Call> calls;
  for (const auto& part : parts) calls.push_back(part->call);
  Call call = fuse_calls(calls, shadow_->rank(), shadow_->size(), pool_, plan);
  return start(*shadow_, &slot, call, plan);
}

// Nobody can tell any more what the other ranks flush: all that is held fails, and later calls are refused.
void FuseStream::break_off(const Error& error) {
  broken_ = error;
  listening_.reset();
  for (auto& [number, kind] : kinds_) {
    for (const auto& part : kind.held) {
      part->failure = error;
      part->gone.store(true, std::memory_order_release);
    }
    kind.held.clear();
    kind.bytes = 0;
  }
  held_ = 0;
  set_pending(false);
}

}  // namespace mcr
