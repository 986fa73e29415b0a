// SPDX-License-Identifier: Apache-2.0
// Candidates that use a communicator for each dimension of a group's topology: hier(shm,mpi), themis(shm,mpi).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/executor.h"
#include "group/group.h"
#include "plugin/backend.h"

namespace mcr {

/// The parts of a group and its registry that a candidate over dimensions uses.
struct Dimensions {
  Registry::Entry& entry;
  std::shared_ptr<Communicator> whole;  // the outermost backend's
};

/// Throws InvalidArgument unless the candidate `name` is registered and the group has its outermost backend.
Dimensions dimensions_of(Group& group, const std::string& name);

/// Calls in steps, on communicators of parts of the group. Calls without a form in steps use the outermost backend's
/// communicator of the whole group.
class DimensionsCommunicator : public Communicator {
 public:
  /// A group, with the candidate to use on it; null where the rank has no communicator. Nothing else may be issued on
  /// it.
  using Part = std::pair<std::shared_ptr<Group>, std::string>;

  bool supports(const Call& call) const override;
  void issue(const Call& call, Lane& lane) override;
  bool always_starts() const override { return true; }
  bool forms_match() const override { return whole_->forms_match(); }
  int largest_tag() const override { return whole_->largest_tag(); }
  bool packed() const override { return whole_->packed(); }
  int patience() const override;
  void check() override;
  void abort() noexcept override;

 protected:
  /// Throws InvalidArgument for a group that lacks its candidate, and for backends that work on a device's streams.
  DimensionsCommunicator(std::span<const Part> parts, const Dimensions& dimensions);

  /// Whether calls of the operation are made in steps, if they are not vectored.
  virtual bool makes_steps(Op op) const = 0;
  /// Whether the call has a form in steps. A function of the operation, type and reduction.
  virtual bool has_steps(const Call& call) const = 0;
  /// Adds the tasks of such a call; the part of an Issue is its index in `parts`.
  virtual void add_steps(const Call& call, Schedule& schedule) = 0;

 private:
  // Slots are copies: they keep the communicators, which the groups may remove meanwhile.
  struct Target {
    std::shared_ptr<Group> group;
    std::optional<Candidate> candidate;  // none where the rank has no communicator
  };
  using Targets = std::vector<Target>;

  const std::shared_ptr<Communicator> whole_;
  std::shared_ptr<Targets> targets_;
  std::shared_ptr<Executor> executor_;
};

/// The entry of an algorithm over dimensions, such as "hier(first,...)".
Registry::Entry& add_over_dimensions(std::string_view algorithm, const std::vector<std::string>& parts);

}  // namespace mcr
