// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/lanes.h"

#include <chrono>
#include <system_error>
#include <thread>

namespace mcr::nccl {

namespace {

// How long an abort waits for a call that another thread is just issuing.
constexpr std::chrono::milliseconds kPatience{300};
constexpr int kMostWaits = 30;  // for one that collects calls, and may itself wait for the device

std::atomic<int> aborting{0};

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
    return begin_abort();
  }
}

void Lanes::abort(const std::string& text) noexcept {
  if (fail(text)) begin_abort();
}

// NCCL's abort waits for the device, which an operation of another communicator may hold until that one is aborted too.
void Lanes::begin_abort() noexcept {
  if (ended_.exchange(true) || !library_->abort) return;
  ++aborting;
  const auto run = [lanes = shared_from_this()] {
    DeviceRuntime::enter_background_everywhere();
    lanes->abort_all();
    --aborting;
  };
  try {
    std::thread(run).detach();
  } catch (const std::system_error&) {  // the system grants no thread
    abort_all();
    --aborting;
  }
}

void Lanes::abort_all() noexcept {
  // If the thread inside the library does not return, it may be waiting for this abort. One that collects calls is not
  // inside.
  Lock lock(mutex_, std::defer_lock);
  bool inside = false;
  for (int waits = 0; waits < kMostWaits && !inside; ++waits) {
    const bool collecting = collecting_;
    if (lock.try_lock_for(kPatience)) break;
    inside = !collecting;
  }
  const bool together = comms_.size() > 1;  // one by one, the first would wait for the second one's operation
  if (together) library_->group_start.quietly();
  for (const Comm comm : comms_) library_->abort.quietly(comm);
  if (together) library_->group_end.quietly();
}

void Lanes::wait_for_aborts(std::chrono::nanoseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (aborting > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Lanes::close() noexcept {
  if (ended_.exchange(true) || !library_->destroy) return;
  const Lock lock(mutex_);
  for (const Comm comm : comms_) library_->destroy.quietly(comm);
}

}  // namespace mcr::nccl
