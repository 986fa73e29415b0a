// SPDX-License-Identifier: Apache-2.0
#include "engine/sequence.h"

#include <utility>

#include "base/error.h"

namespace mcr {

namespace {

// One step of a Work; a hurried one tells its own requests so.
bool poll(Work& work, bool hurried) { return hurried ? work.wait_for(std::chrono::nanoseconds(0)) : work.poll(); }

class IssuerRequest final : public Request {
 public:
  IssuerRequest(std::shared_ptr<Sequence> sequence, std::shared_ptr<Issuer> issuer)
      : sequence_(std::move(sequence)), issuer_(std::move(issuer)) {}
  bool poll() override {
    if (!issuer_->issued()) sequence_->drive();
    return issuer_->issued() && issuer_->finished();
  }
  void hurry() override { sequence_->hurry(); }
  int source() const override { return issuer_->source(); }

 private:
  std::shared_ptr<Sequence> sequence_;
  std::shared_ptr<Issuer> issuer_;
};

class WorkRequest final : public Request {
 public:
  explicit WorkRequest(std::shared_ptr<Work> work) : work_(std::move(work)) {}
  bool poll() override {
    if (!work_->poll()) return false;
    work_->rethrow();
    return true;
  }
  bool block(std::chrono::nanoseconds limit) override {
    work_->wait_for(limit);
    return true;
  }
  void hurry() override { work_->wait_for(std::chrono::nanoseconds(0)); }
  int source() const override { return work_->source(); }

 private:
  std::shared_ptr<Work> work_;
};

}  // namespace

bool Steps::advance(bool hurried) noexcept {
  try {
    while (next_ < rest_.size()) {
      if (!poll(*current_, hurried)) return false;
      current_->rethrow();
      if (next_ == 0) source_ = current_->source();
      current_ = rest_[next_](*current_);
      ++next_;
    }
  } catch (...) {
    failure_ = current_error();
  }
  rest_.clear();
  set_issued();
  return true;
}

bool Steps::finished() {
  if (failure_) throw Error(*failure_);
  if (!current_->poll()) return false;
  current_->rethrow();
  return true;
}

void Sequence::begin(std::shared_ptr<Issuer> issuer) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(issuer));
  if (ordered_) set_pending(true);
}

void Sequence::drive() {
  std::unique_lock lock(mutex_);
  if (std::exchange(driven_, true)) return;
  const bool hurried = hurried_.exchange(false, std::memory_order_relaxed);
  while (!waiting_.empty()) {
    auto first = std::move(waiting_.front());  // its place in the line is kept
    lock.unlock();
    if (first->advance(hurried)) first.reset();
    lock.lock();
    if (first != nullptr) {
      waiting_.front() = std::move(first);
      break;
    }
    waiting_.pop_front();
  }
  if (ordered_ && waiting_.empty()) set_pending(false);
  driven_ = false;
}

void Sequence::hurry() {
  hurried_.store(true, std::memory_order_relaxed);
  drive();
}

std::unique_ptr<Request> request_of(std::shared_ptr<Sequence> sequence, std::shared_ptr<Issuer> issuer) {
  return std::make_unique<IssuerRequest>(std::move(sequence), std::move(issuer));
}

std::unique_ptr<Request> request_of(std::shared_ptr<Work> work) {
  return std::make_unique<WorkRequest>(std::move(work));
}

}  // namespace mcr
