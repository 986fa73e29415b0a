// SPDX-License-Identifier: Apache-2.0
#include "choose/cost_model.h"

#include <algorithm>
#include <utility>

#include "choose/refuse.h"

namespace mcr {

namespace {

constexpr int64_t kMib = int64_t{1} << 20;

constexpr Refusal refuse("cost model");

// The lower median of one value over all models.
template <class Value>
auto lower_median(std::span<const CostModel> models, Value value) {
  std::vector<decltype(value(models[0]))> values;
  for (const auto& model : models) values.push_back(value(model));
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void require_equal(bool equal, std::size_t rank, const std::string& what) {
  if (!equal) refuse(what + ": expected the same on all ranks, got another on rank " + std::to_string(rank));
}

void compare(const CostModel& first, const CostModel& other, std::size_t rank) {
  require_equal(first.resources().size() == other.resources().size(), rank, "the number of resources");
  for (std::size_t i = 0; i < first.resources().size(); ++i) {
    const auto &one = first.resources()[i], &two = other.resources()[i];
    require_equal(one.name == two.name && one.scope == two.scope && one.capacity == two.capacity &&
                      one.slots == two.slots && one.credit == two.credit,
                  rank, "resource '" + one.name + "'");
  }
  auto theirs = other.costs().begin();
  for (const auto& [subject, cost] : first.costs()) {
    require_equal(theirs != other.costs().end() && theirs->first == subject, rank, "the cost of " + subject.text());
    const auto& two = theirs++->second;
    require_equal(cost.curve.points().size() == two.curve.points().size() && cost.demands.size() == two.demands.size(),
                  rank, "the points and demands of " + subject.text());
    for (std::size_t i = 0; i < cost.curve.points().size(); ++i) {
      require_equal(cost.curve.points()[i].bytes == two.curve.points()[i].bytes, rank,
                    "the sizes of " + subject.text());
    }
    for (std::size_t i = 0; i < cost.demands.size(); ++i) {
      require_equal(cost.demands[i].resource == two.demands[i].resource, rank, "the resources of " + subject.text());
    }
  }
  require_equal(theirs == other.costs().end(), rank, "the number of costs");
}

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
  refuse.outside("credit of '" + resource.name + "'", resource.credit, 0, int64_t{1} << 50);
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
  Subject subject{task.kind, issue ? task.call.op : Op::barrier, issue && task.call.vectored, class_of(task.call.dtype),
                  std::string(name)};
  const Subject wanted = subject;
  for (const auto op : {subject.op, Op::send}) {
    subject.op = op;
    for (const bool vectored : {true, false}) {
      subject.vectored = vectored;
      if (vectored && !wanted.vectored) continue;
      for (const auto types : {wanted.types, DTypeClass::Any}) {
        subject.types = types;
        if (const auto* found = find(subject)) return *found;
      }
    }
    if (wanted.op != Op::recv) break;
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

CostModel CostModel::median(std::span<const CostModel> models) {
  if (models.empty()) refuse("expected one model of each rank, got none");
  for (std::size_t rank = 1; rank < models.size(); ++rank) compare(models[0], models[rank], rank);
  CostModel result;
  result.resources_ = models[0].resources_;
  for (const auto& [subject, first] : models[0].costs_) {
    const auto of = [&, &key = subject](auto value) {  // clang before 16 captures no structured binding by default
      return lower_median(models, [&](const CostModel& model) { return value(model.costs_.at(key)); });
    };
    Cost cost = first;
    cost.alpha = of([](const Cost& one) { return one.alpha; });
    cost.per_mib = of([](const Cost& one) { return one.per_mib; });
    cost.latency = of([](const Cost& one) { return one.latency; });
    auto points = first.curve.points();
    for (std::size_t i = 0; i < points.size(); ++i) {
      points[i].cost = of([&](const Cost& one) { return one.curve.points()[i].cost; });
    }
    cost.curve = CostCurve(std::move(points));
    for (std::size_t i = 0; i < cost.demands.size(); ++i) {
      cost.demands[i].share = of([&](const Cost& one) { return one.demands[i].share; });
    }
    result.costs_.emplace(subject, std::move(cost));
  }
  return result;
}

}  // namespace mcr
