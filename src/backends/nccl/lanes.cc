// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/lanes.h"

#include <chrono>

namespace mcr::nccl {

namespace {

// How long abort() waits for a call that another thread is just issuing.
constexpr std::chrono::milliseconds kPatience{500};

}  // namespace

void Lanes::connect(const UniqueId& id, const GroupSpec& spec) {
  Comm comm = nullptr;
  const auto& name = names_.emplace_back(
      std::make_unique<std::string>("mcr_dl " + spec.name + " lane " + std::to_string(comms_.size())));
  if (library_->version() >= kNamesVersion && library_->init_rank_config) {
    Config config;
    config.comm_name = name->c_str();
    library_->init_rank_config(&comm, spec.size(), id, spec.rank, &config);
  } else {
    library_->init_rank(&comm, spec.size(), id, spec.rank);
  }
  comms_.push_back(comm);
}

Lanes::Lock Lanes::lock() {
  check();
  Lock lock(mutex_);
  check();  // it may have failed while this thread waited
  return lock;
}

void Lanes::refuse() const { throw Error(ErrorCode::Backend, text_); }

bool Lanes::fail(const std::string& text) {
  std::lock_guard lock(text_mutex_);
  if (failed_) return false;
  text_ = text;
  failed_.store(true, std::memory_order_release);
  return true;
}

void Lanes::poll() noexcept {
  if (failed_) return;
  // A thread inside the library gets its error there.
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock || ended_) return;
  for (const Comm comm : comms_) {
    Result error = Result::Success;
    const Result answer = library_->async_error.quietly(comm, &error);
    if (answer != Result::Success) error = answer;
    if (error == Result::Success || error == Result::InProgress) continue;
    fail(library_->describe(error, library_->async_error.name()));
    return end(library_->abort);
  }
}

void Lanes::abort(const std::string& text) noexcept {
  if (!fail(text)) return;
  // If the thread inside the library does not return, it may be waiting for this abort.
  Lock lock(mutex_, std::defer_lock);
  static_cast<void>(lock.try_lock_for(kPatience));
  end(library_->abort);
}

void Lanes::close() noexcept {
  const Lock lock(mutex_);
  end(library_->destroy);
}

void Lanes::end(const Routine<Comm>& how) noexcept {
  if (ended_.exchange(true) || !how) return;
  // Aborted one by one, the first would wait for the device, which the second one's operation holds.
  const bool together = &how == &library_->abort && comms_.size() > 1;
  if (together) library_->group_start.quietly();
  for (const Comm comm : comms_) how.quietly(comm);
  if (together) library_->group_end.quietly();
}

}  // namespace mcr::nccl
