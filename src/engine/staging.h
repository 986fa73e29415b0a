// SPDX-License-Identifier: Apache-2.0
// Tensors of devices on libraries that take host memory: copies of them in pinned memory, made and brought back on
// streams of the backend's own while the host goes on.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "engine/executor.h"
#include "engine/pass.h"

namespace mcr {

/// One per group. The host's part of a call is issued when the copy has arrived, on whatever thread sees that; so it
/// runs on communicators of its own, those of a shadow group, where all ranks issue in the order in which the calls
/// were made. Thread-safe.
class Staging {
 public:
  /// Calls on one buffer of more than `chunk` bytes are cut into pieces of that size, so that copies and messages
  /// overlap; 0: they are not. Equal on all ranks.
  Staging(std::shared_ptr<Group> shadow, int64_t chunk) : shadow_(std::move(shadow)), chunk_(chunk) {}

  /// Starts a call that has its slot. A library that takes device memory gets it as it is, once the device has done
  /// what it was given before.
  std::shared_ptr<Work> start(Passage& passage);
  /// Waits until nothing is left to issue; false if the time runs out first. As Pass::settle().
  bool settle(std::chrono::nanoseconds limit);

 private:
  std::shared_ptr<Executor> executor_of(const Passage& passage);

  std::shared_ptr<Group> shadow_;
  int64_t chunk_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Executor>> executors_;  // by backend; guarded by mutex_
};

}  // namespace mcr
