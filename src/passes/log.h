// SPDX-License-Identifier: Apache-2.0
// The log (MCR-DL paper, section V-E): records every call and passes it on unchanged.
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <string_view>

#include "engine/pass.h"
#include "observe/recorder.h"

namespace mcr {

class Log : public Pass {
 public:
  using Ops = std::bitset<kOps.size()>;

  /// Records the calls of these ops. Other calls are counted too, so that sequence numbers do not depend on `ops`.
  Log(const Group& group, Ops ops) : group_(Recorder::instance().enter(group.position())), ops_(ops) {}

  std::string_view name() const override { return "log"; }
  Outcome handle(Passage& passage, const Next& next) override;

 private:
  int64_t record(Passage& passage, int64_t seq) const;
  // A call that was refused, perhaps on this rank alone, has no number. A collective keeps it if another one has
  // followed, as their numbers are compared over the ranks.
  void withdraw(std::atomic<int64_t>& counter, int64_t number, int64_t seq) const;

  RecordedGroup& group_;
  const Ops ops_;
};

}  // namespace mcr
