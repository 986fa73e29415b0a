// SPDX-License-Identifier: Apache-2.0
#include "engine/hierarchical.h"

#include <memory>
#include <utility>

namespace mcr {

namespace {

class HierarchicalCommunicator final : public DimensionsCommunicator {
 public:
  HierarchicalCommunicator(int rank, Lines lines, const LineParts& parts, const Dimensions& dimensions)
      : DimensionsCommunicator(parts, dimensions), rank_(rank), lines_(std::move(lines)) {}

 protected:
  bool makes_steps(Op op) const override { return !row(op).is(kPeer); }
  bool has_steps(const Call& call) const override { return has_hierarchy(call); }
  void add_steps(const Call& call, Schedule& schedule) override { hierarchy(call, rank_, lines_, schedule); }

 private:
  const int rank_;
  const Lines lines_;
};

}  // namespace

void connect_hierarchy(Group& group, const std::string& name, std::vector<std::vector<int>> lines,
                       const LineParts& parts) {
  const auto dimensions = dimensions_of(group, name);
  group.adopt(dimensions.entry,
              std::make_unique<HierarchicalCommunicator>(group.rank(), Lines(std::move(lines)), parts, dimensions));
}

}  // namespace mcr
