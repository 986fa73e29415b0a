// SPDX-License-Identifier: Apache-2.0
// The costs of tasks, in whole numbers: equal inputs give equal times on every rank.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/schedule.h"
#include "choose/curve.h"

namespace mcr {

/// One whole unit of a resource: a core, a link.
inline constexpr int32_t kUnit = 1024;

/// The most that one task may cost, in nanoseconds: 18 minutes.
inline constexpr int64_t kMostCost = int64_t{1} << 40;

/// What tasks compete for: cores, a link, a thread.
struct Resource {
  enum class Scope : uint8_t { Rank, Host, All };  // whose tasks compete: each rank's, each host's, all

  std::string name = {};
  Scope scope = Scope::Rank;
  int32_t capacity = kUnit;  // shares served at full speed; where tasks want more, each is slowed down alike
  int32_t slots = 0;         // tasks in flight, the others queue; 0: any number
  int64_t credit = 0;        // bytes in flight, beyond which others queue (one task always fits); 0: any number
};

inline constexpr std::array<std::string_view, 3> kScopes = {"rank", "host", "all"};

/// A task's share of a resource while it works. 0: it takes a slot alone.
struct Demand {
  uint32_t resource;  // as CostModel::add() has numbered it
  int32_t share = kUnit;
  bool operator==(const Demand&) const = default;
};

/// How long a task takes that competes with no other: as measured, else alpha + bytes * beta.
struct Cost {
  CostCurve curve = {};
  int64_t alpha = 0;    // ns
  int64_t per_mib = 0;  // beta: ns for 2^20 bytes
  int64_t latency = 0;  // ns, the first of these, in which it holds its slots and uses no share
  std::vector<Demand> demands = {};

  int64_t at(int64_t bytes) const;
};

/// Nanoseconds of a curve's cost: 2^(log2 / 2^16), the smallest whole number that fixed_log2() maps there or above.
int64_t fixed_exp2(int32_t log2);

/// The costs of all kinds of tasks, and the resources that they use.
class CostModel {
 public:
  struct Subject {
    Task::Kind kind;
    Op op = Op::barrier;  // of an Issue
    bool vectored = false;
    DTypeClass types = DTypeClass::Any;
    std::string name = {};  // the candidate of an Issue, the codec of Encode and Decode
    auto operator<=>(const Subject&) const = default;
    std::string text() const;
  };

  /// Throws InvalidArgument for a name that is there already, and for values out of range.
  uint32_t add(Resource resource);
  /// Throws InvalidArgument for a subject that is there already, for demands above a resource's capacity and for costs
  /// out of range.
  void add(Subject subject, Cost cost);

  /// The cost of a task of that candidate or codec. Where the table lacks it, that of the form with equal counts, then
  /// that of any element type; a receive costs what a send does. Throws InvalidArgument that names what is missing.
  const Cost& cost(const Task& task, std::string_view name) const;
  /// The size that it goes by: of the message of an Issue, of the elements of other tasks.
  static int64_t bytes(const Task& task, int ranks);

  const std::vector<Resource>& resources() const { return resources_; }
  const std::map<Subject, Cost>& costs() const { return costs_; }

  /// The model of medians, the lower one of two, of what each rank has measured. Throws InvalidArgument, naming the
  /// first difference, where models differ in more than times and shares.
  static CostModel median(std::span<const CostModel> models);

 private:
  const Cost* find(const Subject& subject) const;

  std::vector<Resource> resources_;
  std::map<Subject, Cost> costs_;
};

}  // namespace mcr
