// SPDX-License-Identifier: Apache-2.0
#include "engine/themis.h"

#include <array>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/candidate_name.h"
#include "base/error.h"

namespace mcr {

namespace {

constexpr std::array kTriedPolicies = {themis::Policy::Baseline, themis::Policy::Fifo, themis::Policy::Scf};
constexpr std::array kVariants = {kFixedOrder};
constexpr auto kTriedChunks = std::span(themis::kChunkCounts).first<12>();
static_assert(kTriedChunks.back() == 64);
// An assumption of the simulation: the executor issues a step when the one before it in its chunk has ended, so steps
// of a dimension overlap.
constexpr int kInFlight = 2;
constexpr int64_t kLargest = int64_t{1} << 40;  // bytes of a call that the network must be able to do
constexpr int kClassBits = 4;

// Sizes that share a plan: those with the same first bits, rounded up.
int64_t class_of(int64_t bytes) {
  const auto width = static_cast<int>(std::bit_width(static_cast<uint64_t>(bytes)));
  if (width <= kClassBits) return bytes;
  const auto step = int64_t{1} << (width - kClassBits);
  return (bytes + step - 1) / step * step;
}

ChunkOrders orders_of(themis::Plan plan) {
  ChunkOrders found{std::move(plan.orders), {}};
  for (const auto& step : plan.steps) found.issues.emplace_back(step.chunk, step.index);
  return found;
}

class ThemisCommunicator final : public DimensionsCommunicator {
 public:
  ThemisCommunicator(std::vector<themis::Dimension> network, Grid grid, const std::vector<Part>& parts,
                     const Dimensions& dimensions)
      : DimensionsCommunicator(parts, dimensions), network_(std::move(network)), grid_(std::move(grid)) {}

  std::span<const std::string_view> variants() const override { return kVariants; }
  bool varies(const Call& call, int /*variant*/) const override { return has_steps(call); }

 protected:
  bool makes_steps(Op op) const override { return has_ordered(op); }
  bool has_steps(const Call& call) const override { return has_ordered(call); }
  void add_steps(const Call& call, Schedule& schedule) override {
    ordered(call, grid_, orders(call.op, class_of(larger_side_bytes(call)), call.variant == 1), schedule);
  }

 private:
  const ChunkOrders& orders(Op op, int64_t bytes, bool baseline) {
    const std::lock_guard lock(mutex_);
    auto& found = plans_[{op, bytes, baseline}];
    if (found == nullptr) found = std::make_unique<ChunkOrders>(orders_of(plan_of(network_, op, bytes, baseline)));
    return *found;
  }

  const std::vector<themis::Dimension> network_;
  const Grid grid_;
  std::mutex mutex_;
  std::map<std::tuple<Op, int64_t, bool>, std::unique_ptr<const ChunkOrders>>
      plans_;  // guarded by mutex_; never removed
};

}  // namespace

themis::Plan plan_of(std::span<const themis::Dimension> network, Op op, int64_t bytes, bool baseline) {
  const auto policies = std::span(kTriedPolicies).first(baseline ? 1 : kTriedPolicies.size());
  return themis::best(network, {op, class_of(bytes), kInFlight}, policies, kTriedChunks);
}

void connect_themis(Group& group, const std::string& name, std::vector<themis::Dimension> network, Grid grid,
                    const std::vector<DimensionsCommunicator::Part>& parts) {
  const auto dimensions = dimensions_of(group, name);
  try {
    static_cast<void>(themis::plan(network, {Op::all_reduce, kLargest, kInFlight}, themis::Policy::Baseline, 1));
  } catch (const Error& error) {  // now, and not in a call
    throw Error(ErrorCode::InvalidArgument,
                "group '" + group.spec().name + "': backend '" + name + "': innermost first: " + error.what());
  }
  group.adopt(dimensions.entry,
              std::make_unique<ThemisCommunicator>(std::move(network), std::move(grid), parts, dimensions));
}

}  // namespace mcr
