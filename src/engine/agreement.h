// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "group/group.h"
#include "runtime/work.h"

namespace mcr {

/// One number that all ranks of a group have, found in rounds: every rank proposes one, and the least of them is
/// agreed. With call numbers of the group as proposals, "the calls that I have made", every rank has made the calls up
/// to the answer. A round ends when the last rank has proposed; a rank that is late only makes the others wait for the
/// answer, which they poll. One thread at a time uses it. Rounds are collectives of the group, in the order in which
/// they begin.
class Agreement {
 public:
  /// `group` has communicators on which nothing else is issued, or other calls in an order that all ranks share.
  explicit Agreement(std::shared_ptr<Group> group) : group_(std::move(group)) {}

  /// Begins a round on the candidate. Not while one is under way.
  void propose(int64_t value, Slot slot);
  bool under_way() const { return round_ != nullptr || alone_; }
  /// The agreed number, once, when the round has ended; throws its error.
  std::optional<int64_t> poll();
  /// Forgets the round that is under way.
  void reset() { round_.reset(); }

 private:
  const std::shared_ptr<Group> group_;
  std::shared_ptr<Work> round_;
  const int64_t* answer_ = nullptr;  // the memory of round_
  std::optional<int64_t> alone_;     // in a group of one rank
};

}  // namespace mcr
