// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/executor.h"
#include "engine/pass.h"

namespace mcr {

/// The target of the late Issues of a group's schedules, the stage: a group with this group's ranks and backends on
/// which nothing else is issued, and for each backend the executor that keeps the Issues in order, which backends that
/// share communicators have in common. Thread-safe.
class Stage {
 public:
  /// The group has its backends.
  explicit Stage(std::shared_ptr<Group> group);

  /// Whether the stage has the candidate's backend: the group may have removed it.
  bool serves(const Candidate& candidate) const;
  /// Late Issues wait for the results of other ranks, or for copies on a device.
  enum class LateFor : uint8_t { Ranks, Device };
  /// Begins the schedule of a call that has its candidate; `first` starts the Issues that are not late. Returns the
  /// request for the call's Work. Throws NotInitialized if the stage does not serve the candidate, and what `first`
  /// throws. Messages whose late Issues wait for a device alone keep the order in which they were submitted, since
  /// libraries match those of one tag by their order, and blocking calls let them go first.
  std::unique_ptr<Request> submit(const Passage& passage, const std::shared_ptr<Schedule>& schedule,
                                  const Start& first = nullptr, LateFor late_for = LateFor::Ranks);
  /// Starts a call on the stage at once, outside the executor's order: a message that has a tag of its own.
  /// `memory` is kept until the call is complete.
  void start_now(const Passage& passage, const Call& call, std::shared_ptr<void> memory);
  /// The next of the numbers that give messages of start_now() a tag of their own. Passes that come and go share them,
  /// as messages of an earlier pass may still be under way.
  uint32_t next_message() { return messages_.fetch_add(1, std::memory_order_relaxed); }
  /// Waits until no late Issue of a collective is pending; false if the time runs out first. Under the rules of
  /// Pass::synchronize().
  bool synchronize(std::chrono::nanoseconds limit);
  /// Of collectives, by backend; backends with a common executor have equal ones.
  std::map<std::string, ExecutorStatistics> statistics();

 private:
  Start later(const Passage& passage, const std::shared_ptr<Schedule>& schedule) const;
  std::shared_ptr<Executor> executor_of(const Passage& passage, LateFor late_for);

  const std::shared_ptr<Group> group_;
  std::atomic<uint32_t> messages_{0};
  std::mutex mutex_;
  struct Ordered {
    std::vector<Progress*> progress;  // of its backends
    std::shared_ptr<Executor> collectives, messages;
  };
  std::map<std::string, std::shared_ptr<Ordered>, std::less<>> executors_;  // by backend; guarded by mutex_
};

/// The candidate with that name; throws NotInitialized if the group has removed it or is closed. Inside the group a
/// copy keeps its communicator, which the group may release later.
Candidate& candidate_of(Group& group, std::string_view name);

/// Starts a call on a group without passes that serves another one. `memory` is kept until the call is complete; the
/// Work keeps the communicator, but not the group.
std::shared_ptr<Work> start_on(Group& stage, Candidate candidate, Call call, std::shared_ptr<void> memory);

}  // namespace mcr
