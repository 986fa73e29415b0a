// SPDX-License-Identifier: Apache-2.0
// The costs of tasks, in whole numbers: equal inputs give equal times on all ranks.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/schedule.h"
#include "choose/curve.h"

namespace mcr {

/// A whole unit of a resource: a core, a link.
inline constexpr int32_t kUnit = 1024;

/// The maximum cost of one task, in nanoseconds: 18 minutes.
inline constexpr int64_t kMostCost = int64_t{1} << 40;

/// A resource that tasks compete for: cores, a link, a thread.
struct Resource {
  enum class Scope : uint8_t { Rank, All };  // which tasks compete: those of one rank, or all

  std::string name = {};
  Scope scope = Scope::Rank;
  int32_t capacity = kUnit;  // shares served at full speed; if tasks want more, all are slowed down equally
  int32_t slots = 0;         // tasks in flight, others queue; 0: unlimited
};

inline constexpr std::array<std::string_view, 2> kScopes = {"rank", "all"};
inline constexpr std::array<std::string_view, 6> kTaskKinds = {"issue", "copy", "combine", "encode", "decode", "wait"};

/// A task's share of a resource while it works. 0: the task only takes a slot.
struct Demand {
  uint32_t resource;  // the number that CostModel::add() returned
  int32_t share = kUnit;
  bool operator==(const Demand&) const = default;
};

/// How long a task takes without competition: as measured, else alpha + bytes * beta.
struct Cost {
  CostCurve curve = {};
  int64_t alpha = 0;    // ns
  int64_t per_mib = 0;  // beta: ns for 2^20 bytes
  int64_t latency = 0;  // ns, the first part of the cost, in which the task holds its slots and uses no share
  std::vector<Demand> demands = {};

  int64_t at(int64_t bytes) const;
};

/// The inverse of fixed_log2() for a curve's cost, in nanoseconds: 2^(log2 / 2^16), the smallest whole number that
/// fixed_log2() maps to `log2` or above.
int64_t fixed_exp2(int32_t log2);

/// The costs of all kinds of tasks, and the resources that they use.
class CostModel {
 public:
  struct Subject {
    Task::Kind kind;
    Op op = Op::barrier;  // for an Issue
    bool vectored = false;
    DTypeClass types = DTypeClass::Any;
    std::string name = {};  // an Issue's candidate, an Encode's or Decode's codec
    auto operator<=>(const Subject&) const = default;
    std::string text() const;
  };

  /// Throws InvalidArgument for a name that exists already, and for values out of range.
  uint32_t add(Resource resource);
  /// Throws InvalidArgument for a subject that exists already, for demands above a resource's capacity and for costs
  /// out of range.
  void add(Subject subject, Cost cost);

  /// Throws InvalidArgument, which begins with `text`, for demands above a resource's capacity and for a cost out of
  /// range.
  void check(const std::string& text, const Cost& cost) const;

  /// The cost of a task with that candidate or codec. If the table lacks it: the cost of the form with equal counts,
  /// then the cost for any element type. A receive costs what a send does. Throws InvalidArgument that names what is
  /// missing.
  const Cost& cost(const Task& task, std::string_view name) const;
  /// The size by which costs are looked up: the call's data for an Issue, the elements for other tasks.
  static int64_t bytes(const Task& task, int ranks);

  const std::vector<Resource>& resources() const { return resources_; }
  const std::map<Subject, Cost>& costs() const { return costs_; }

 private:
  const Cost* find(const Subject& subject) const;

  std::vector<Resource> resources_;
  std::map<Subject, Cost> costs_;
};

}  // namespace mcr
