// SPDX-License-Identifier: Apache-2.0
#include "choose/cost_model.h"

#include <algorithm>
#include <utility>

#include "choose/kinds.h"
#include "choose/refuse.h"

namespace mcr {

namespace {

constexpr int64_t kMib = int64_t{1} << 20;

constexpr Refusal refuse("cost model");

}  // namespace

int64_t fixed_exp2(int32_t log2) {
  if (log2 <= 0) return 1;
  int64_t low = 1, high = kMostCost;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (fixed_log2(middle) >= log2) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

int64_t Cost::at(int64_t bytes) const {
  bytes = std::max<int64_t>(bytes, 0);
  if (curve.known()) return fixed_exp2(curve.at(bytes));
  // Whole mebibytes and the rest are multiplied separately: the full product would overflow.
  const int64_t whole = bytes / kMib, rest = bytes % kMib;
  if (per_mib != 0 && whole > kMostCost / per_mib) return kMostCost;
  return std::min(kMostCost, alpha + whole * per_mib + (rest * per_mib + kMib - 1) / kMib);
}

std::string CostModel::Subject::text() const {
  std::string text(kTaskKinds[static_cast<std::size_t>(kind)]);
  if (kind == Task::Kind::Issue) text += " of " + operation_name(op, vectored);
  if (types != DTypeClass::Any) text += ", " + std::string(kDTypeClasses[static_cast<std::size_t>(types)]);
  return name.empty() ? text : text + " on " + name;
}

uint32_t CostModel::add(Resource resource) {
  const auto same = [&](const Resource& other) { return other.name == resource.name; };
  if (std::any_of(resources_.begin(), resources_.end(), same)) {
    refuse("resource '" + resource.name + "': expected a new name");
  }
  refuse.outside("capacity of '" + resource.name + "'", resource.capacity, 1, kUnit * kUnit);
  refuse.outside("slots of '" + resource.name + "'", resource.slots, 0, kUnit * kUnit);
  resources_.push_back(std::move(resource));
  return static_cast<uint32_t>(resources_.size() - 1);
}

void CostModel::check(const std::string& text, const Cost& cost) const {
  refuse.outside("alpha of " + text, cost.alpha, 0, kMostCost);
  refuse.outside("beta of " + text, cost.per_mib, 0, kMostCost);
  refuse.outside("latency of " + text, cost.latency, 0, kMostCost);
  for (const auto& demand : cost.demands) {
    if (demand.resource >= resources_.size()) {
      refuse(text + ": expected one of " + std::to_string(resources_.size()) + " resources, got number " +
             std::to_string(demand.resource));
    }
    const auto& resource = resources_[demand.resource];
    refuse.outside(text + ": share of '" + resource.name + "'", demand.share, 0, resource.capacity);
  }
}

void CostModel::add(Subject subject, Cost cost) {
  const auto text = subject.text();
  check(text, cost);
  if (!costs_.emplace(std::move(subject), std::move(cost)).second) refuse(text + ": expected one cost, got a second");
}

const Cost* CostModel::find(const Subject& subject) const {
  const auto found = costs_.find(subject);
  return found == costs_.end() ? nullptr : &found->second;
}

const Cost& CostModel::cost(const Task& task, std::string_view name) const {
  const bool issue = task.kind == Task::Kind::Issue;
  Subject subject{task.kind, issue ? measured_as(task.call.op) : Op::barrier, issue && task.call.vectored,
                  class_of(task.call.dtype), std::string(name)};
  const Subject wanted = subject;
  for (const bool vectored : {true, false}) {
    subject.vectored = vectored;
    if (vectored && !wanted.vectored) continue;
    for (const auto types : {wanted.types, DTypeClass::Any}) {
      subject.types = types;
      if (const auto* found = find(subject)) return *found;
    }
  }
  refuse("expected the cost of " + wanted.text() + ", got none");
}

int64_t CostModel::bytes(const Task& task, int ranks) {
  const auto& call = task.call;
  const int64_t element = size_of(call.dtype);
  switch (task.kind) {
    case Task::Kind::Issue: {
      const int64_t known = message_bytes(call, ranks);
      return known >= 0 ? known : larger_side_bytes(call);
    }
    case Task::Kind::Decode:
      return call.out.count * element;
    case Task::Kind::Copy:
    case Task::Kind::Combine:
    case Task::Kind::Encode:
      return call.in.count * element;
    case Task::Kind::Wait:
      break;
  }
  return 0;
}

}  // namespace mcr
