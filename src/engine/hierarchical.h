// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "algorithms/hierarchy.h"
#include "engine/executor.h"
#include "group/group.h"
#include "plugin/backend.h"

namespace mcr {

/// A group's communicators for the dimensions of its topology as one candidate, such as "hier(shm,mpi)". Calls without
/// a hierarchical form use the outermost backend's communicator of the whole group.
class HierarchicalCommunicator final : public Communicator {
 public:
  /// The groups of Lines::Part, with the candidate to use on each; null where the rank has no communicator. Nothing
  /// else may be issued on them.
  struct Part {
    std::shared_ptr<Group> group;
    std::string candidate;
  };
  using Parts = std::array<Part, Lines::kParts>;

  /// Throws InvalidArgument for a group that lacks its candidate, and for backends that work on a device's streams.
  HierarchicalCommunicator(int rank, Lines lines, const Parts& parts, std::shared_ptr<Communicator> whole,
                           Progress& progress);

  bool supports(const Call& call) const override;
  void issue(const Call& call, Lane& lane) override;
  bool always_starts() const override { return true; }
  bool inline_messages() const override { return whole_->inline_messages(); }
  bool packed() const override { return whole_->packed(); }
  void begin_batch() override { whole_->begin_batch(); }
  void end_batch() override { whole_->end_batch(); }
  void check() override;
  void abort() noexcept override;

 private:
  // Slots are copies: they keep the communicators, which the groups may remove meanwhile.
  struct Target {
    std::shared_ptr<Group> group;
    std::optional<Slot> slot;  // none where the rank has no communicator
  };
  using Targets = std::array<Target, Lines::kParts>;

  const int rank_;
  const Lines lines_;
  const std::shared_ptr<Communicator> whole_;
  std::shared_ptr<Targets> targets_;
  std::shared_ptr<Executor> executor_;
};

/// The registry's backend for such candidates; connect_hierarchy() makes its communicators.
class HierarchicalBackend final : public Backend {
 public:
  explicit HierarchicalBackend(std::vector<std::string> parts) : parts_(std::move(parts)) {}
  /// The entry "hier(first,...)".
  static Registry::Entry& add(const std::vector<std::string>& parts);

  std::string library() const override;
  std::unique_ptr<Communicator> connect(const GroupSpec& spec) override;

 private:
  const std::vector<std::string> parts_;
};

/// Gives a group the candidate `name`, which is registered. The group must have the outermost backend: throws
/// InvalidArgument otherwise.
void connect_hierarchy(Group& group, const std::string& name, std::vector<std::vector<int>> lines,
                       const HierarchicalCommunicator::Parts& parts);

}  // namespace mcr
