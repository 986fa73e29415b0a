// SPDX-License-Identifier: Apache-2.0
// The candidates that are compared for a call, and what explain() says of them.
#include <algorithm>
#include <utility>

#include "choose/decision.h"
#include "choose/kinds.h"
#include "choose/select.h"

namespace mcr {

bool Selector::Field::known() const {
  return std::ranges::any_of(curves, [](const CostCurve* curve) { return curve->known(); });
}

std::vector<const CostCurve*> Selector::curves_of(const std::vector<Candidate*>& candidates,
                                                  const Subject& subject) const {
  std::vector<const CostCurve*> curves(candidates.size(), &kUnmeasured);
  for (const auto& cost : tuning_.costs) {
    if (cost.subject != subject) continue;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (candidates[i]->name == cost.candidate) curves[i] = &cost.curve;
    }
  }
  return curves;
}

// A candidate that fails in blocking calls, or in those with equal counts, is expected to fail in the other forms too,
// unless it was measured there.
bool Selector::excluded(const Candidate& candidate, const Call& call) const {
  if (tuning_.excluded.empty()) return false;
  const Op op = measured_as(call.op);
  const bool measured = std::ranges::any_of(tuning_.costs, [&](const Tuning::Cost& cost) {
    const auto& subject = cost.subject;
    return cost.candidate == candidate.name && subject.op == op && subject.vectored == call.vectored &&
           subject.asynchronous == call.asynchronous && subject.device == call.device.type && cost.curve.known();
  });
  return std::ranges::any_of(tuning_.excluded, [&](const Tuning::Excluded& one) {
    if (one.candidate != candidate.name || one.op != op || one.device != call.device.type) return false;
    if (one.vectored == call.vectored && one.asynchronous == call.asynchronous) return true;
    return !measured && (call.vectored || !one.vectored) && (call.asynchronous || !one.asynchronous);
  });
}

// For a call that no candidate does natively, or only excluded ones do: the first that can do it at all.
Candidate* Selector::stand_in(const Call& call) const {
  if (tuning_.excluded.empty()) return eligible_.front();
  const auto found = std::ranges::find_if(eligible_, [&](const Candidate* candidate) {
    return candidate->variant == 0 && !excluded(*candidate, call) &&
           Decision::of(*candidate->communicator, call).form != Form::Unsupported;
  });
  return found == eligible_.end() ? nullptr : *found;
}

// The candidates that do the call natively. Libraries that take the tensors directly come first: the order matters when
// there are no measurements.
std::vector<Candidate*> Selector::native(const Call& call) const {
  std::vector<Candidate*> candidates;
  for (const auto way : {&Decision::native, &Decision::native_on_copies}) {
    for (auto* const candidate : eligible_) {
      if (!(Decision::of(*candidate->communicator, call).*way)()) continue;
      if (candidate->variant == 0 || candidate->communicator->varies(call, candidate->variant))
        candidates.push_back(candidate);
    }
  }
  return candidates;
}

// Those without the excluded ones. These stay if the group has no other way: it must have a choice. Equal on all ranks,
// as the exclusions are rank 0's and the decisions are functions of the call.
std::vector<Candidate*> Selector::allowed(const Call& call) const {
  auto candidates = native(call);
  auto found = candidates;
  std::erase_if(found, [&](const Candidate* candidate) { return excluded(*candidate, call); });
  return found.empty() && stand_in(call) == nullptr ? candidates : found;
}

// If the call's class of types, its vectored or its asynchronous form has not been measured, uses the curves of the
// nearest that has.
Selector::Field Selector::field(const Call& call) const {
  if (eligible_.empty()) throw no_backend();
  Field result;
  result.candidates = allowed(call);
  const auto own = types_of(call);
  const auto near = row(call.op).is(kReduces) ? DTypeClass::Float : DTypeClass::Any;
  result.own = {measured_as(call.op), call.vectored, call.asynchronous, call.device.type, own};
  for (const bool asynchronous : {call.asynchronous, false}) {
    for (const auto& [vectored, types] :
         {std::pair{call.vectored, own}, {call.vectored, near}, {false, own}, {false, near}}) {
      result.measured = {result.own.op, vectored, asynchronous, result.own.device, types};
      result.curves = curves_of(result.candidates, result.measured);
      if (result.known()) return result;
    }
  }
  result.measured = result.own;
  return result;
}

Selector::Explanation Selector::explain(const Call& call, bool direct) {
  Explanation result{};
  const auto bytes = message_bytes(call, ranks_);
  const Range& range = range_of(remembered(call).ranges, bytes);
  result.chosen = &choose(call);
  result.rule = range.rule;
  const Field compared = field(call);
  result.guessed = compared.guessed();
  for (std::size_t i = 0; i < compared.candidates.size(); ++i) {
    const auto* curve = compared.curves[i];
    const bool refined = std::any_of(tuning_.costs.begin(), tuning_.costs.end(),
                                     [&](const auto& cost) { return cost.refined && &cost.curve == curve; });
    const auto cost = curve->known() ? std::optional(curve->at(std::max<int64_t>(bytes, 0))) : std::nullopt;
    result.candidates.push_back({compared.candidates[i], cost, refined});
  }
  for (auto* const candidate : native(call)) {
    if (std::ranges::find(compared.candidates, candidate) == compared.candidates.end())
      result.excluded.push_back(candidate);
  }
  if (direct && !range.ruled() && bytes >= 0) explain_trials(call, bytes, result);
  return result;
}

// The result of choose() for a call that goes through no passes.
void Selector::explain_trials(const Call& call, int64_t bytes, Explanation& result) {
  if (trials_ == nullptr || bytes < remembered(call).trials_from) return;
  const auto found = trials_->result(call, bytes);
  if (!found) {
    // The call here has no tensors: its size is the one asked for, which not all ranks know of every operation.
    result.trying = can_be_timed(call, bytes) && message_elements(call, ranks_) >= 0;
    return;
  }
  result.tried = true;
  result.chosen = &at(found->chosen);
  result.guessed = false;
  for (auto& candidate : result.candidates) {
    candidate.cost.reset();
    for (const auto& [place, cost] : found->costs) {
      if (&at(place) == candidate.candidate) candidate.cost = static_cast<int32_t>(cost);
    }
    candidate.refined = candidate.cost.has_value();
  }
}

}  // namespace mcr
