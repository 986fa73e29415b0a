// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "group/group.h"
#include "runtime/work.h"

namespace mcr {

/// One number on which all ranks of a group agree, found in rounds: every rank proposes a number, and the lowest one is
/// agreed. If each rank proposes the number of calls that it has made on the group, every rank has made the calls up to
/// the agreed number. A round ends when the last rank has proposed; a late rank only delays the answer, for which the
/// others poll. Used by one thread at a time. Rounds are collectives of the group, in the order in which they begin.
class Agreement {
 public:
  /// On the communicators of `group` nothing else is issued, or other calls in an order that all ranks share.
  explicit Agreement(std::shared_ptr<Group> group) : group_(std::move(group)) {}

  /// Begins a round on the candidate. Not while a round is running.
  void propose(int64_t value, Slot slot);
  bool under_way() const { return round_ != nullptr || alone_; }
  /// The agreed number, once, when the round has ended; throws the round's error.
  std::optional<int64_t> poll();
  /// Forgets the running round.
  void reset() { round_.reset(); }

 private:
  const std::shared_ptr<Group> group_;
  std::shared_ptr<Work> round_;
  const int64_t* answer_ = nullptr;  // points into the memory of round_
  std::optional<int64_t> alone_;     // in a group of one rank
};

}  // namespace mcr
