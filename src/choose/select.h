// SPDX-License-Identifier: Apache-2.0
// Which candidate (a backend, or a variant of one) gets a call that names none.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "choose/curve.h"
#include "choose/refine.h"
#include "plugin/backend.h"
#include "runtime/registry.h"
#include "runtime/striped.h"

namespace mcr {

/// A candidate: a backend's communicator, and which of its variants.
struct Slot {
  Registry::Entry& backend;
  std::shared_ptr<Communicator> communicator;  // shared with running works and with the backend's other variants
  const std::string& name;                     // "mpi" or "mpi:p2p"; of the registry
  uint8_t variant = 0;
  std::optional<DeviceType> streams;             // the communicator's, at hand
  const StripedCommunicator* striped = nullptr;  // the communicator, if it is one
};

/// What the measurements say, for one group. It must be equal on all ranks of the group: so are the choices then.
struct Tuning {
  struct Cost {
    Op op;
    bool vectored;
    DeviceType device;
    DTypeClass types;
    std::string candidate;
    CostCurve curve;
    bool refined = false;  // has points that were measured while the program ran
  };
  /// The user's word: such calls go as if they named the candidate. Of several rules the last counts.
  struct Rule {
    Op op;
    bool vectored;
    int64_t from, to;  // bytes, without `to`
    std::string candidate;
    static constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();
  };
  std::vector<Cost> costs;
  std::vector<Rule> rules;
};

/// The choice of one group. choose() and explain() may be called from any thread; what changes it not beside them.
class Selector {
 public:
  explicit Selector(int ranks) : ranks_(ranks) {}

  /// New candidates or measurements; what was worked out from the old ones is forgotten, and refinement starts anew.
  void reset(std::list<Slot>& slots, Tuning tuning);
  const Tuning& tuning() const { return tuning_; }

  /// The candidate of a call that names none: the user's rule; else the cheapest by the cost curves among those that do
  /// the call themselves; without curves the first of these, in the order in which the backends were given.
  Slot& choose(const Call& call);
  /// The same for a call that is about to run to its end, where refinement may try another candidate and time it.
  Slot& choose(const Call& call, Stopwatch& watch);

  /// How a striped candidate cuts the call; nothing if its first part gets the whole. By the message's size and the
  /// parts' cost curves, or the candidate's own share: equal on all ranks, but for what is local in Stripes.
  std::optional<Stripes> stripes(const Slot& slot, const Call& call) {
    return slot.striped == nullptr ? std::nullopt : cut(slot, call);
  }

  /// Turns refinement on, with no calls counted, or off (0). Collective in effect: in the same place of the order of
  /// calls on all ranks.
  void refine(int64_t period);
  const Refinement* refinement() const { return refinement_.get(); }

  struct Change {
    Op op;
    bool vectored;
    int64_t bytes;
    std::string from, to;
  };
  /// Takes costs that the ranks have agreed on, in the order of Refinement::costs(). A bucket counts in which at least
  /// two candidates have one. Equal on all ranks if `agreed` is: nothing that this rank has measured goes into it.
  std::vector<Change> adopt(std::span<const int64_t> agreed);

  struct Explanation {
    const Slot* chosen;
    bool forced;   // by a rule
    bool guessed;  // from the curves of another class of types, or of the form with equal counts
    struct Candidate {
      const Slot* slot;
      const CostCurve* curve;  // null: not measured
      bool refined;
    };
    std::vector<Candidate> candidates;  // those that were compared
  };
  Explanation explain(const Call& call);

 private:
  struct Range {
    int64_t from;
    Slot* slot;
    bool forced;
  };
  // The cost curves of a striped candidate's parts.
  struct Pair {
    const StripedCommunicator* striped;
    std::array<const CostCurve*, 2> curves;
    int32_t share(int64_t bytes) const;
  };
  struct Choice {
    std::vector<Range> ranges;  // from 0 on, never empty
    Range unsized;
    std::vector<Pair> pairs;
  };
  // What a set of curves is for.
  struct Subject {
    Op op;
    bool vectored;
    DeviceType device;
    DTypeClass types;
    bool operator==(const Subject&) const = default;
  };
  struct Field {
    std::vector<Slot*> slots;
    std::vector<const CostCurve*> curves;  // one per slot; an empty curve where there is none
    Subject own, measured;                 // the call's, and the one that the curves are of
    bool known() const;
    bool guessed() const { return !(own == measured); }
  };
  static constexpr std::size_t kForms = kOps.size() * 2 * 2;  // op, vectored, device
  static constexpr std::size_t kTypes = kDTypes.size() * kReductions.size();
  using Types = std::array<std::atomic<const Choice*>, kTypes>;

  const Choice& remembered(const Call& call);
  const Choice& decide(const Call& call);
  Field field(const Call& call) const;
  static Subject subject_of(const Tuning::Cost& cost) { return {cost.op, cost.vectored, cost.device, cost.types}; }
  std::vector<const CostCurve*> curves_of(const std::vector<Slot*>& slots, const Subject& subject) const;
  std::optional<Stripes> cut(const Slot& slot, const Call& call);
  std::vector<Pair> pairs_of(const Field& compared) const;
  void overlay(Choice& choice, const Tuning::Rule& rule, Slot& slot) const;
  const Range& range_of(const Choice& choice, int64_t bytes) const;
  void forget();
  std::size_t place_of(const Slot& slot) const;
  Slot* try_another(Refinement::Bucket& bucket, const Call& call, int64_t bytes, const Slot& chosen);
  void update(const Refinement::Bucket& bucket, std::span<const int64_t> agreed);
  Tuning::Cost& cost_of(const Subject& subject, const std::string& candidate);

  int ranks_;
  std::list<Slot>* slots_ = nullptr;
  Tuning tuning_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<const Choice>> choices_;
  std::vector<std::unique_ptr<Types>> tables_;
  std::array<std::atomic<Types*>, kForms> forms_{};
  std::unique_ptr<Refinement> refinement_;  // null: off
};

}  // namespace mcr
