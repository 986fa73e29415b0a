// SPDX-License-Identifier: Apache-2.0
#include "choose/select.h"

#include <algorithm>
#include <climits>
#include <map>
#include <set>
#include <utility>

#include "base/candidate_name.h"
#include "choose/decision.h"
#include "choose/kinds.h"

namespace mcr {

namespace {

// Bytes from which on a stripe cuts a call: below, the second message costs more than it saves.
constexpr int64_t kLeastCut = 64 * 1024;

// The backend, or those that it is made of.
std::set<std::string> libraries_of(const std::string& backend) {
  const auto parts = CandidateName::parse(backend).parts;
  if (parts.empty()) return {backend};
  std::set<std::string> found;
  for (const auto& part : parts) found.merge(libraries_of(part));
  return found;
}

}  // namespace

void Selector::reset(std::list<Candidate>& candidates, Tuning tuning) {
  std::lock_guard lock(mutex_);
  candidates_ = &candidates;
  for (auto& candidate : candidates) candidate.communicator->forget_decisions();
  find_eligible();
  tuning_ = std::move(tuning);
  forget();
  if (refinement_) refinement_ = std::make_unique<Refinement>(refinement_->period(), candidates.size());
  covered_.clear();
  for (const auto& cost : tuning_.costs) {
    if (tuning_.exact && cost.curve.known()) covered_.emplace_back(cost.subject, cost.curve.points().back().bytes);
  }
  start_trials();
}

void Selector::find_eligible() {
  eligible_.clear();
  for (auto& candidate : *candidates_) {
    if (candidate.backend.backend->moves_data()) eligible_.push_back(&candidate);
  }
  if (!eligible_.empty()) return;
  for (auto& candidate : *candidates_) eligible_.push_back(&candidate);
}

void Selector::forget() {
  for (auto& form : forms_) form = nullptr;
  tables_.clear();
  choices_.clear();
}

Candidate& Selector::choose(const Call& call) {
  return usual(remembered(call).ranges, call, message_bytes(call, ranks_));
}

Candidate& Selector::choose_unruled(const Call& call) {
  const auto& choice = remembered(call);
  return usual(choice.unruled ? *choice.unruled : choice.ranges, call, message_bytes(call, ranks_));
}

Candidate* Selector::ruled(const Call& call) {
  if (tuning_.rules.empty() || eligible_.empty()) return nullptr;
  const Range& range = range_of(remembered(call).ranges, message_bytes(call, ranks_));
  return range.ruled() ? range.candidate : nullptr;
}

Candidate& Selector::usual(const Ranges& ranges, const Call& call, int64_t bytes) const {
  const Range& range = range_of(ranges, bytes);
  // Only very large counts, in all blocks together, make a communicator refuse a call whose types it supports.
  if (bytes <= most_bytes_ || range.ruled()) return *range.candidate;
  const auto decision = Decision::of(*range.candidate->communicator, call);
  if (decision.native() || decision.native_on_copies()) return *range.candidate;
  for (auto* const candidate : eligible_) {
    if (candidate->variant != 0 || excluded(*candidate, call)) continue;
    if (Decision::of(*candidate->communicator, call).native()) return *candidate;
  }
  return *range.candidate;
}

const Selector::Range& Selector::range_of(const Ranges& ranges, int64_t bytes) {
  if (bytes < 0) return ranges.unsized;
  auto range = ranges.sized.begin();  // short calls are the ones that notice
  for (auto next = range + 1; next != ranges.sized.end() && next->from <= bytes; ++next) range = next;
  return *range;
}

const Selector::Choice& Selector::remembered(const Call& call) {
  auto form = static_cast<std::size_t>(call.op);
  for (const bool part : {call.vectored, call.asynchronous, call.device.type != DeviceType::CPU}) {
    form = form * 2 + (part ? 1 : 0);
  }
  // The reductions' places of an operation without: a library may refuse receives from any rank alone.
  const auto kind = row(call.op).is(kReduces) ? static_cast<std::size_t>(call.red) : call.root == kAnyRank ? 1 : 0;
  const auto types = static_cast<std::size_t>(call.dtype) * kReductions.size() + kind;
  if (const auto* table = forms_[form].load(std::memory_order_acquire)) [[likely]] {
    if (const auto* choice = (*table)[types].load(std::memory_order_acquire)) [[likely]]
      return *choice;
  }
  std::lock_guard lock(mutex_);
  if (forms_[form] == nullptr) forms_[form] = tables_.emplace_back(std::make_unique<Types>()).get();
  auto& place = (*forms_[form].load())[types];
  if (place == nullptr) place = &decide(call);
  return *place.load();
}

// Calls of all sizes share the choice, and ranks may make other calls first, so neither its counts nor its hint matter.
const Selector::Choice& Selector::decide(const Call& made) {
  Call call = made;
  call.in.count = call.out.count = 0;
  call.size_hint = -1;
  call.in_counts = call.in_displs = call.out_counts = call.out_displs = {};
  const Field compared = field(call);
  Choice choice;
  auto& [sized, unsized] = choice.ranges;
  choice.pairs = pairs_of(compared);
  if (compared.known()) {
    for (const auto& range : cheapest(compared.curves)) {
      sized.push_back({range.from, compared.candidates[range.curve]});
    }
    unsized = {0, compared.candidates[cheapest_overall(compared.curves)]};
  } else {
    auto* const first = compared.candidates.empty() ? stand_in(call) : compared.candidates.front();
    unsized = {0, first == nullptr ? eligible_.front() : first};
    sized = {unsized};
  }
  if (trials_ != nullptr) {
    choice.trials_from = uncovered_from(compared.own);
    choice.decided = std::make_unique<Decided>();
  }
  for (const auto& rule : tuning_.rules) {
    if (rule.op != measured_as(call.op) || rule.vectored != call.vectored) continue;
    for (auto& candidate : *candidates_) {
      if (candidate.name == rule.candidate) overlay(choice, rule, candidate);
    }
  }
  return *choices_.emplace_back(std::make_unique<const Choice>(std::move(choice)));
}

void Selector::overlay(Choice& choice, const Tuning::Rule& rule, Candidate& candidate) const {
  if (!choice.unruled) choice.unruled = choice.ranges;
  auto& [sized, unsized] = choice.ranges;
  const auto index = static_cast<int32_t>(&rule - tuning_.rules.data());
  if (rule.from == 0 && rule.to == Tuning::Rule::kNoEnd) unsized = {0, &candidate, index};
  std::vector<Range> changed;
  Range resumed = range_of(choice.ranges, rule.to);
  resumed.from = rule.to;
  for (const auto& range : sized) {
    if (range.from < rule.from) changed.push_back(range);
  }
  changed.push_back({rule.from, &candidate, index});
  if (rule.to != Tuning::Rule::kNoEnd) changed.push_back(resumed);
  for (const auto& range : sized) {
    if (range.from > rule.to) changed.push_back(range);
  }
  sized = std::move(changed);
}

// ---- striped candidates

std::vector<Selector::Pair> Selector::pairs_of(const Field& compared) const {
  std::vector<Pair> pairs;
  for (const auto& candidate : *candidates_) {
    if (candidate.striped == nullptr || candidate.variant != 0) continue;
    Pair pair{candidate.striped, {&kUnmeasured, &kUnmeasured}};
    for (const auto& cost : tuning_.costs) {
      if (cost.subject != compared.measured) continue;
      for (std::size_t i = 0; i < pair.curves.size(); ++i) {
        if (cost.candidate == candidate.striped->parts()[i].name) pair.curves[i] = &cost.curve;
      }
    }
    pairs.push_back(pair);
  }
  return pairs;
}

// Both parts together take as long as the slower one, and the least when they take equally long. The first part's cost
// rises with its share and the second's falls, so bisection finds the share.
int32_t Selector::Pair::share(int64_t bytes) const {
  constexpr int32_t kLeast = 50;
  if (!curves[0]->known() || !curves[1]->known()) return Stripes::kWhole / 2;
  int32_t low = kLeast, high = Stripes::kWhole - kLeast;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    const auto first = curves[0]->at(bytes / Stripes::kWhole * middle);
    const auto second = curves[1]->at(bytes / Stripes::kWhole * (Stripes::kWhole - middle));
    if (first < second) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

std::optional<int32_t> Selector::share(const Candidate& candidate, const Call& call) {
  constexpr int64_t kUnsized = int64_t{1} << 20;  // the assumed size of uneven calls, whose size not all ranks know
  if (candidate.striped == nullptr || !row(call.op).is(kCuttable)) return std::nullopt;
  const auto bytes = message_bytes(call, ranks_);
  if (bytes >= 0 && bytes < kLeastCut) return std::nullopt;
  if (const auto fixed = StripedCommunicator::share_of(candidate.variant)) return fixed;
  for (const auto& pair : remembered(call).pairs) {
    if (pair.striped == candidate.striped) return pair.share(bytes < 0 ? kUnsized : bytes);
  }
  return Stripes::kWhole / 2;
}

std::optional<Stripes> Selector::cut(const Candidate& candidate, const Call& call) {
  const auto part = share(candidate, call);
  if (!part) return std::nullopt;
  Stripes stripes;
  stripes.share = *part;
  for (std::size_t i = 0; i < stripes.packed.size(); ++i) {
    stripes.packed[i] = candidate.striped->parts()[i].communicator->packed();
  }
  if (call.vectored) return stripes;
  const int64_t block = block_elements(call, ranks_);
  const int64_t first = first_piece(block, stripes);
  return first == 0 || first == block ? std::nullopt : std::optional(stripes);
}

// ---- refinement

void Selector::refine(int64_t period) {
  end_trials();
  refinement_ = period == 0 ? nullptr : std::make_unique<Refinement>(period, candidates_->size());
}

Candidate* Selector::choose(const Call& call, int64_t bytes, Timing& timing) {
  const auto& choice = remembered(call);
  Candidate& candidate = usual(choice.ranges, call, bytes);
  if (bytes < choice.trials_from && refinement_ == nullptr) [[likely]]
    return &candidate;
  if (range_of(choice.ranges, bytes).ruled()) return &candidate;  // the user's rule
  const bool tried = timing.direct && refinement_ == nullptr && choice.decided != nullptr;
  if (tried && bytes <= INT_MAX) {
    if (auto* const decided = (*choice.decided)[Trials::octave(bytes)].load(std::memory_order_relaxed)) return decided;
  }
  if (!can_be_timed(call, bytes)) return &candidate;
  // Asynchronous calls have no time of their own, and one of any form may be asynchronous on some ranks. The group
  // decides that: a call that different threads make, as in a step of a pass, has any form on some ranks only.
  if (refinement_ != nullptr && (call.asynchronous || (call.any_form && timing.any_form))) return &candidate;
  if (refinement_ != nullptr) return refined(call, bytes, candidate, timing);
  // Passes may issue calls in an order of their own, which the trials of two ranks might count differently.
  if (!tried) return &candidate;
  auto turn = trials_->next(call, bytes, [&] { return options(call, bytes, candidate); });
  if (!turn) return nullptr;
  timing.trial = std::move(turn->trial);
  timing.tried = turn->count;
  auto* const chosen = &at(turn->candidate);
  if (turn->decided) (*choice.decided)[Trials::octave(bytes)].store(chosen, std::memory_order_relaxed);
  return chosen;
}

// Not point-to-point calls, as not all ranks make them, calls whose size not all ranks know, and device calls, whose
// time the host's clock does not show.
bool Selector::can_be_timed(const Call& call, int64_t bytes) {
  return !row(call.op).is(kPeer) && bytes >= 0 && bytes <= INT_MAX && call.device.type == DeviceType::CPU;
}

void Selector::withdraw(const Timing& timing) {
  if (timing.tried.number >= 0 && trials_ != nullptr) trials_->withdraw(timing.tried);
  if (timing.refined.bucket != nullptr && refinement_ != nullptr) refinement_->withdraw(timing.refined);
}

Candidate* Selector::refined(const Call& call, int64_t bytes, Candidate& usual, Timing& timing) {
  const auto turn = refinement_->next(call, bytes);
  timing.refined = turn.count;
  if (turn.part == Refinement::Part::Nothing) [[likely]]
    return &usual;
  Candidate* candidate =
      turn.part == Refinement::Part::Trial ? try_another(*turn.count.bucket, call, bytes, usual) : &usual;
  if (candidate == nullptr) return &usual;
  auto& series = turn.count.bucket->series[place_of(*candidate)];
  if (turn.part == Refinement::Part::Trial) timing.refined.tried = &series;
  timing.stopwatch.start(*refinement_, series);
  return candidate;
}

std::size_t Selector::place_of(const Candidate& candidate) const {
  const auto found = std::find_if(candidates_->begin(), candidates_->end(),
                                  [&](const Candidate& other) { return &other == &candidate; });
  return static_cast<std::size_t>(std::distance(candidates_->begin(), found));
}

Candidate* Selector::try_another(Refinement::Bucket& bucket, const Call& call, int64_t bytes, const Candidate& chosen) {
  const Field compared = field(call);
  std::vector<Refinement::Option> others;
  Refinement::Option mine{place_of(chosen), false, 0};
  for (std::size_t i = 0; i < compared.candidates.size(); ++i) {
    const auto* curve = compared.curves[i];
    const Refinement::Option option{place_of(*compared.candidates[i]), curve->known(), curve->at(bytes)};
    if (compared.candidates[i] == &chosen) {
      mine = option;
    } else {
      others.push_back(option);
    }
  }
  const auto* picked = refinement_->pick(bucket, mine, others);
  return picked == nullptr ? nullptr : &at(picked->candidate);
}

std::vector<Selector::Change> Selector::adopt(std::span<const int64_t> agreed) {
  std::vector<Change> changes;
  std::vector<const Call*> calls;
  const auto width = candidates_->size();
  for (const auto& bucket : refinement_->buckets()) {
    const auto costs = agreed.subspan(calls.size() * width, width);
    const auto& call = bucket->call();
    calls.push_back(&call);
    changes.push_back({call.op, call.vectored, call.size_hint, choose(call).name, {}});
    if (std::count(costs.begin(), costs.end(), Refinement::kUnknown) > static_cast<std::ptrdiff_t>(width) - 2) continue;
    update(call, costs);
    Refinement::restart(*bucket, costs);
  }
  {
    std::lock_guard lock(mutex_);
    forget();
  }
  for (std::size_t i = 0; i < calls.size(); ++i) changes[i].to = choose(*calls[i]).name;
  std::erase_if(changes, [](const Change& change) { return change.from == change.to; });
  return changes;
}

// Unmeasured candidates' curves move with the curve of the candidate in use: while a program does other work,
// everything takes longer than alone.
void Selector::update(const Call& kind, std::span<const int64_t> agreed) {
  const int64_t bytes = kind.size_hint;
  const Field compared = field(kind);
  if (compared.guessed()) {  // gives the class its own curves, starting as copies of those used so far
    auto copies = tuning_.costs;
    std::erase_if(copies, [&](const auto& cost) { return cost.subject != compared.measured; });
    for (auto& copy : copies) {
      copy.subject = compared.own;
      tuning_.costs.push_back(std::move(copy));
    }
  }
  const Candidate& chosen = choose(kind);
  const auto mine = agreed[place_of(chosen)];
  const auto& used = cost_of(compared.own, chosen.name).curve;
  const auto moved = mine != Refinement::kUnknown && used.known() ? mine - used.at(bytes) : 0;
  std::size_t place = 0;
  for (const auto& candidate : *candidates_) {
    const auto measured = agreed[place++];
    auto& cost = cost_of(compared.own, candidate.name);
    if (measured == Refinement::kUnknown && !cost.curve.known()) continue;
    const auto fresh = measured == Refinement::kUnknown ? cost.curve.at(bytes) + moved : measured;
    cost.curve.put({bytes, static_cast<int32_t>(fresh)});
    cost.refined = cost.refined || measured != Refinement::kUnknown;
  }
}

Tuning::Cost& Selector::cost_of(const Subject& subject, const std::string& candidate) {
  for (auto& cost : tuning_.costs) {
    if (cost.subject == subject && cost.candidate == candidate) return cost;
  }
  return tuning_.costs.emplace_back(Tuning::Cost{subject, candidate, {}});
}

// ---- trials

void Selector::try_candidates(const std::string& group) {
  const std::lock_guard lock(mutex_);
  group_ = group;
  forget();
  start_trials();
}

void Selector::start_trials() {
  trials_.reset();
  if (group_.empty() || eligible_.size() < 2 || ranks_ < 2) return;
  std::vector<std::string> names;
  for (const auto& candidate : *candidates_) names.push_back(candidate.name);
  trials_ = std::make_shared<Trials>(group_, resets_++, names);
  for (const auto& tried : tuning_.tried) {
    const auto found = std::ranges::find(
        eligible_, tried.candidate, [](const Candidate* candidate) -> const std::string& { return candidate->name; });
    if (found == eligible_.end() || excluded(**found, tried.call)) continue;
    trials_->remember(tried.call, place_of(**found), tried.cost);
  }
}

void Selector::await_trials(const Call& call, const std::function<void()>& check) {
  trials_->await(call, message_bytes(call, ranks_), check);
}

// Without measurements of their own, calls use those of similar calls. Up to twice the largest size measured, a curve
// tells enough.
int64_t Selector::uncovered_from(const Subject& subject) const {
  int64_t from = 0;
  for (const auto& [measured, largest] : covered_) {
    if (measured == subject) from = std::max(from, largest < kCovered / 2 ? 2 * largest + 1 : kCovered);
  }
  return from;
}

// The candidates that similar calls, or smaller ones, do not show to be hopeless: 16 times as slow as the best.
Trials::Options Selector::options(const Call& call, int64_t bytes, const Candidate& usual) const {
  constexpr int32_t kHopeless = 4 << 16;
  const Field compared = field(call);
  int32_t best = std::numeric_limits<int32_t>::max();
  for (const auto* curve : compared.curves) {
    if (curve->known()) best = std::min(best, curve->at(bytes));
  }
  Trials::Options result{place_of(usual), {}};
  for (std::size_t i = 0; i < compared.candidates.size(); ++i) {
    const auto& candidate = *compared.candidates[i];
    // A stripe computes its share, and does not cut small calls.
    if (candidate.striped != nullptr && (candidate.variant != 0 || bytes < kLeastCut)) continue;
    const auto& curve = *compared.curves[i];
    if (curve.known() && curve.at(bytes) - kHopeless > best) continue;
    result.tried.push_back(place_of(candidate));
  }
  return result;
}

void Selector::end_trials() {
  if (trials_ == nullptr) return;
  const auto results = trials_->results();
  group_.clear();
  trials_.reset();
  for (const auto& result : results) {
    std::vector<int64_t> costs(candidates_->size(), Trials::kUnknown);
    for (const auto& [place, cost] : result.costs) costs[place] = cost;
    update(result.call, costs);
  }
  const std::lock_guard lock(mutex_);
  forget();
}

CostModel Selector::cost_model(DeviceType device) const {
  CostModel model;
  std::map<std::string, uint32_t> resources;
  if (candidates_ == nullptr) return model;
  for (const auto& candidate : *candidates_) {
    for (const auto& name : libraries_of(candidate.backend.name)) {
      if (!resources.contains(name)) resources[name] = model.add({.name = name});
    }
  }
  for (const auto& cost : tuning_.costs) {
    const auto candidate =
        std::ranges::find_if(*candidates_, [&](const Candidate& one) { return one.name == cost.candidate; });
    const auto& subject = cost.subject;
    if (candidate == candidates_->end() || subject.device != device || subject.asynchronous || !cost.curve.known())
      continue;
    std::vector<Demand> demands;
    for (const auto& name : libraries_of(candidate->backend.name)) demands.push_back({.resource = resources.at(name)});
    model.add({Task::Kind::Issue, subject.op, subject.vectored, subject.types, cost.candidate},
              {.curve = cost.curve, .demands = std::move(demands)});
  }
  return model;
}

}  // namespace mcr
