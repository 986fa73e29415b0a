// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "runtime/work.h"

namespace mcr {

/// A call that a pass holds: another Work does it later, or it fails. One thread sets its outcome, once; any thread
/// polls.
class Deferred {
 public:
  void fulfil(std::shared_ptr<Work> work) {
    work->set_part();
    work_ = std::move(work);
    given_ = true;
    if (abandoned_) pass_on();
  }
  void fail(const Error& error) {
    error_.emplace(error);
    given_ = true;
  }
  /// Like Request::abandon(), from any thread.
  void abandon() {
    abandoned_ = true;
    if (given_ && work_ != nullptr) pass_on();
  }
  bool abandoned() const { return abandoned_; }
  /// The Work or the error is set.
  bool given() const { return given_.load(std::memory_order_acquire); }

  /// True once the call is complete; throws its error.
  bool poll() const {
    if (!given()) return false;
    if (error_) throw Error(*error_);
    if (!work_->poll()) return false;
    work_->rethrow();
    return true;
  }
  /// Nothing is running any more; after an error, this may be later than poll() reports.
  bool finished() const { return !given() || work_ == nullptr || (work_->poll(), work_->finished()); }
  /// Like Request::source() and behind(): the Work's, once there is one.
  int source() const { return given() && work_ != nullptr ? work_->source() : -1; }
  std::string behind() const { return given() && work_ != nullptr ? work_->behind() : std::string(); }
  /// Like Request::block().
  bool block(std::chrono::nanoseconds limit) const {
    if (!given() || error_) return false;
    work_->wait_for(limit);
    return true;
  }

 private:
  void pass_on() {
    if (!passed_on_.test_and_set()) work_->abandon_part();
  }

  std::shared_ptr<Work> work_;  // both are written before `given_`
  std::optional<Error> error_;
  std::atomic<bool> given_{false}, abandoned_{false};  // in one order for fulfil() and abandon()
  std::atomic_flag passed_on_ = ATOMIC_FLAG_INIT;
};

/// The request of a deferred call.
class DeferredRequest : public Lingering {
 public:
  explicit DeferredRequest(std::shared_ptr<Deferred> call) : call_(std::move(call)) {}
  int source() const override { return call_->source(); }
  std::string behind() const override { return call_->behind(); }
  bool block(std::chrono::nanoseconds limit) override { return call_->block(limit); }
  void abandon() override { call_->abandon(); }

 protected:
  bool step() override { return call_->poll(); }

 private:
  bool rest() const override { return call_->finished(); }

  std::shared_ptr<Deferred> call_;
};

}  // namespace mcr
