// SPDX-License-Identifier: Apache-2.0
// Which candidate (a backend, or one of its variants) gets a call that names none.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "choose/candidate.h"
#include "choose/cost_model.h"
#include "choose/curve.h"
#include "choose/refine.h"
#include "choose/trials.h"

namespace mcr {

/// The measurements of one group. Equal on all ranks of the group, so that the choices are equal too.
struct Tuning {
  /// The calls for which a set of curves was measured.
  struct Subject {
    Op op;
    bool vectored, asynchronous;
    DeviceType device;
    DTypeClass types;
    bool operator==(const Subject&) const = default;
  };
  struct Cost {
    Subject subject;
    std::string candidate;
    CostCurve curve;
    bool refined = false;  // has points measured while the program ran
  };
  /// A user override: matching calls behave as if they named the candidate. The last matching rule wins.
  struct Rule {
    Op op;
    bool vectored;
    int64_t from, to;  // bytes, `to` excluded
    std::string candidate;
    static constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();
  };
  /// A result of trials in earlier jobs.
  struct Tried {
    Call call;  // as of Trials::Result
    std::string candidate;
    int64_t cost;
  };
  /// A candidate that failed when it was measured: calls of this op and form that name none do not use it.
  struct Excluded {
    Op op;
    bool vectored, asynchronous;
    DeviceType device;
    std::string candidate;
  };
  std::vector<Cost> costs;
  bool exact = true;  // the costs are those of groups of this shape; trials cover their calls otherwise, too
  std::vector<Rule> rules;
  std::vector<Tried> tried;
  std::vector<Excluded> excluded;
};

/// The error of a call on a group whose backends have all ended.
inline Error no_backend() { return {ErrorCode::Unavailable, "the group has no backend"}; }

/// How a call is timed.
struct Timing {
  explicit Timing(bool direct) : direct(direct) {}
  const bool direct;             // no pass has issued the call; others take no part in trials
  bool any_form = false;         // Group::any_form()
  Stopwatch stopwatch;           // for refinement
  std::shared_ptr<Trial> trial;  // null: not timed by the trials
  Trials::Count tried;           // the call's number for the trials
  Refinement::Count refined;     // and for refinement
};

/// The choices of one group. choose() and explain() may be called from any thread, but not concurrently with calls that
/// change the choices.
class Selector {
 public:
  explicit Selector(int ranks) : ranks_(ranks), most_bytes_(std::numeric_limits<int>::max() / ranks) {}

  /// Sets new candidates or measurements, forgets the choices derived from the old ones, and restarts refinement.
  void reset(std::list<Candidate>& candidates, Tuning tuning);
  const Tuning& tuning() const { return tuning_; }

  /// The candidate for a call that names none: the user's rule; else the cheapest by the cost curves among those that
  /// do the call natively and are not excluded; without curves the first of those, in the order in which the backends
  /// were given.
  Candidate& choose(const Call& call);
  /// The candidate that a rule of the user names for the call; null: none does. Passes that choose by another call than
  /// the program's ask this for the program's call, and then choose_unruled() for the other: rules are for the
  /// program's calls.
  Candidate* ruled(const Call& call);
  Candidate& choose_unruled(const Call& call);
  /// The candidate for a call of the program, in the order of the group's calls: refinement and trials may use another
  /// candidate and time it. `bytes`: its message_bytes(). Null: the ranks must agree first, in await_trials(); then
  /// call this again.
  Candidate* choose(const Call& call, int64_t bytes, Timing& timing);
  /// Gives back what choose() has counted for the group's latest call, which has failed on this rank before anything
  /// was sent: else this rank would use other candidates than the others from then on.
  void withdraw(const Timing& timing);
  void await_trials(const Call& call, const std::function<void()>& check);

  /// Turns trials on, of the calls that the measurements do not cover. `group`: its name. Once, when the group is made.
  void try_candidates(const std::string& group);
  /// Null: off.
  const std::shared_ptr<Trials>& trials() const { return trials_; }

  /// The part of the call that a striped candidate gives to its first backend, in thousandths; nothing if it is not
  /// striped, or the call is not cut. Equal on all ranks, as stripes().
  std::optional<int32_t> share(const Candidate& candidate, const Call& call);

  /// How a striped candidate splits the call; nothing if its first part gets the whole. Depends on the data's size and
  /// the parts' cost curves, or on the candidate's own share: equal on all ranks, except for what is local in Stripes.
  std::optional<Stripes> stripes(const Candidate& candidate, const Call& call) {
    return candidate.striped == nullptr ? std::nullopt : cut(candidate, call);
  }

  /// Turns refinement on, with no calls counted, or off (0), and ends the trials: their results become costs. Called at
  /// the same point in the order of calls on all ranks.
  void refine(int64_t period);
  const Refinement* refinement() const { return refinement_.get(); }

  struct Change {
    Op op;
    bool vectored;
    int64_t bytes;
    std::string from, to;
  };
  /// Adopts costs that the ranks have agreed on, in the order of Refinement::costs(). Only buckets with costs for two
  /// candidates or more count. Equal on all ranks if `agreed` is: no measurement of this rank is used.
  std::vector<Change> adopt(std::span<const int64_t> agreed);

  struct Explanation {
    const Candidate* chosen;
    int32_t rule;  // the index in Tuning::rules of the one that decided; -1: none did
    bool guessed;  // from the curves of another class of types, of the form with equal counts, or of blocking calls
    bool tried;    // by results of trials
    bool trying;   // further calls may use other candidates, until the trials have decided
    struct Estimate {
      const Candidate* candidate;
      std::optional<int32_t> cost;  // at the call's size, or at 0 if it is not known; nothing: not measured
      bool refined;
    };
    std::vector<Estimate> candidates;        // those compared
    std::vector<const Candidate*> excluded;  // by the measurements; others that do the call natively
  };
  /// `direct`: as in Timing.
  Explanation explain(const Call& call, bool direct = true);

  /// The measured costs on a kind of device: the cost of an Issue for each candidate. Candidates of one backend share
  /// one resource per rank, named after the backend; a candidate made of several uses the resources of all. Equal on
  /// all ranks.
  CostModel cost_model(DeviceType device) const;

 private:
  struct Range {
    int64_t from;
    Candidate* candidate;
    int32_t rule = -1;  // as in Explanation
    bool ruled() const { return rule >= 0; }
  };
  // The cost curves of a striped candidate's parts.
  struct Pair {
    const StripedCommunicator* striped;
    std::array<const CostCurve*, 2> curves;
    int32_t share(int64_t bytes) const;
  };
  // The candidates on which trials have decided, by octave of sizes; null: none yet.
  using Decided = std::array<std::atomic<Candidate*>, Trials::kOctaves>;
  static constexpr int64_t kCovered = std::numeric_limits<int64_t>::max();
  struct Ranges {
    std::vector<Range> sized;  // starting at 0, never empty
    Range unsized;
  };
  struct Choice {
    Ranges ranges;
    std::optional<Ranges> unruled;     // without the user's rules; nothing: no rule changes them
    int64_t trials_from = kCovered;    // calls of so many bytes or more are not covered by measurements
    std::unique_ptr<Decided> decided;  // of these calls; null if there are none
    std::vector<Pair> pairs;
  };
  using Subject = Tuning::Subject;
  struct Field {
    std::vector<Candidate*> candidates;
    std::vector<const CostCurve*> curves;  // one per candidate; empty if there is none
    Subject own, measured;                 // the call's, and that of the curves
    bool known() const;
    bool guessed() const { return !(own == measured); }
  };
  static constexpr std::size_t kForms = kOps.size() * 2 * 2 * 2;  // op, vectored, asynchronous, device
  static constexpr std::size_t kTypes = kDTypes.size() * kReductions.size();
  using Types = std::array<std::atomic<const Choice*>, kTypes>;

  const Choice& remembered(const Call& call);
  const Choice& decide(const Call& call);
  Field field(const Call& call) const;
  std::vector<Candidate*> native(const Call& call) const;
  std::vector<Candidate*> allowed(const Call& call) const;
  bool excluded(const Candidate& candidate, const Call& call) const;
  Candidate* stand_in(const Call& call) const;
  std::vector<const CostCurve*> curves_of(const std::vector<Candidate*>& candidates, const Subject& subject) const;
  std::optional<Stripes> cut(const Candidate& candidate, const Call& call);
  std::vector<Pair> pairs_of(const Field& compared) const;
  void overlay(Choice& choice, const Tuning::Rule& rule, Candidate& candidate) const;
  Candidate& usual(const Ranges& ranges, const Call& call, int64_t bytes) const;
  static const Range& range_of(const Ranges& ranges, int64_t bytes);
  void find_eligible();
  void forget();
  std::size_t place_of(const Candidate& candidate) const;
  Candidate* refined(const Call& call, int64_t bytes, Candidate& usual, Timing& timing);
  Trials::Options options(const Call& call, int64_t bytes, const Candidate& usual) const;
  int64_t uncovered_from(const Subject& subject) const;
  void start_trials();
  void end_trials();
  void explain_trials(const Call& call, int64_t bytes, Explanation& result);
  static bool can_be_timed(const Call& call, int64_t bytes);
  Candidate& at(std::size_t place) { return *std::next(candidates_->begin(), static_cast<std::ptrdiff_t>(place)); }
  Candidate* try_another(Refinement::Bucket& bucket, const Call& call, int64_t bytes, const Candidate& chosen);
  void update(const Call& kind, std::span<const int64_t> agreed);
  Tuning::Cost& cost_of(const Subject& subject, const std::string& candidate);

  int ranks_;
  int64_t most_bytes_;  // of a call whose blocks no communicator refuses
  std::list<Candidate>* candidates_ = nullptr;
  std::vector<Candidate*> eligible_;  // for calls that name none: all that move data, or all if none does
  Tuning tuning_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<const Choice>> choices_;
  std::vector<std::unique_ptr<Types>> tables_;
  std::array<std::atomic<Types*>, kForms> forms_{};
  std::unique_ptr<Refinement> refinement_;            // null: off
  std::string group_;                                 // its name; empty: no trials
  int64_t resets_ = 0;                                // numbers the objects in trials_
  std::shared_ptr<Trials> trials_;                    // null: off
  std::vector<std::pair<Subject, int64_t>> covered_;  // the largest size measured, by kind of calls
};

}  // namespace mcr
