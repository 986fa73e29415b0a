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

std::vector<const CostCurve*> Selector::curves_of(const std::vector<Slot*>& slots, const Subject& subject) const {
  std::vector<const CostCurve*> curves(slots.size(), &kUnmeasured);
  for (const auto& cost : tuning_.costs) {
    if (cost.subject != subject) continue;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i]->name == cost.candidate) curves[i] = &cost.curve;
    }
  }
  return curves;
}

// A candidate that fails in blocking calls, or in those with equal counts, is expected to fail in the other forms too,
// unless it was measured there.
bool Selector::excluded(const Slot& slot, const Call& call) const {
  if (tuning_.excluded.empty()) return false;
  const Op op = measured_as(call.op);
  const bool measured = std::ranges::any_of(tuning_.costs, [&](const Tuning::Cost& cost) {
    const auto& subject = cost.subject;
    return cost.candidate == slot.name && subject.op == op && subject.vectored == call.vectored &&
           subject.asynchronous == call.asynchronous && subject.device == call.device.type && cost.curve.known();
  });
  return std::ranges::any_of(tuning_.excluded, [&](const Tuning::Excluded& one) {
    if (one.candidate != slot.name || one.op != op || one.device != call.device.type) return false;
    if (one.vectored == call.vectored && one.asynchronous == call.asynchronous) return true;
    return !measured && (call.vectored || !one.vectored) && (call.asynchronous || !one.asynchronous);
  });
}

// For a call that no candidate does natively, or only excluded ones do: the first that can do it at all.
Slot* Selector::stand_in(const Call& call) const {
  if (tuning_.excluded.empty()) return eligible_.front();
  const auto found = std::ranges::find_if(eligible_, [&](const Slot* slot) {
    return slot->variant == 0 && !excluded(*slot, call) &&
           Decision::of(*slot->communicator, call).form != Form::Unsupported;
  });
  return found == eligible_.end() ? nullptr : *found;
}

// The candidates that do the call natively. Libraries that take the tensors directly come first: the order matters when
// there are no measurements.
std::vector<Slot*> Selector::native(const Call& call) const {
  std::vector<Slot*> slots;
  for (const auto way : {&Decision::native, &Decision::native_on_copies}) {
    for (auto* const slot : eligible_) {
      if (!(Decision::of(*slot->communicator, call).*way)()) continue;
      if (std::ranges::find(slots, slot) != slots.end()) continue;
      if (slot->variant == 0 || slot->communicator->varies(call, slot->variant)) slots.push_back(slot);
    }
  }
  return slots;
}

// Those without the excluded ones. These stay if the group has no other way: it must have a choice. Equal on all ranks,
// as the exclusions are rank 0's and the decisions are functions of the call.
std::vector<Slot*> Selector::allowed(const Call& call) const {
  auto slots = native(call);
  auto found = slots;
  std::erase_if(found, [&](const Slot* slot) { return excluded(*slot, call); });
  return found.empty() && stand_in(call) == nullptr ? slots : found;
}

// If the call's class of types, its vectored or its asynchronous form has not been measured, uses the curves of the
// nearest that has.
Selector::Field Selector::field(const Call& call) const {
  if (eligible_.empty()) throw no_backend();
  Field result;
  result.slots = allowed(call);
  const auto own = types_of(call);
  const auto near = row(call.op).is(kReduces) ? DTypeClass::Float : DTypeClass::Any;
  result.own = {measured_as(call.op), call.vectored, call.asynchronous, call.device.type, own};
  for (const bool asynchronous : {call.asynchronous, false}) {
    for (const auto& [vectored, types] :
         {std::pair{call.vectored, own}, {call.vectored, near}, {false, own}, {false, near}}) {
      result.measured = {result.own.op, vectored, asynchronous, result.own.device, types};
      result.curves = curves_of(result.slots, result.measured);
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
  result.forced = range.forced;
  const Field compared = field(call);
  result.guessed = compared.guessed();
  for (std::size_t i = 0; i < compared.slots.size(); ++i) {
    const auto* curve = compared.curves[i];
    const bool refined = std::any_of(tuning_.costs.begin(), tuning_.costs.end(),
                                     [&](const auto& cost) { return cost.refined && &cost.curve == curve; });
    const auto cost = curve->known() ? std::optional(curve->at(std::max<int64_t>(bytes, 0))) : std::nullopt;
    result.candidates.push_back({compared.slots[i], cost, refined});
  }
  for (auto* const slot : native(call)) {
    if (std::ranges::find(compared.slots, slot) == compared.slots.end()) result.excluded.push_back(slot);
  }
  if (direct && !result.forced && bytes >= 0) explain_trials(call, bytes, result);
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
      if (&at(place) == candidate.slot) candidate.cost = static_cast<int32_t>(cost);
    }
    candidate.refined = candidate.cost.has_value();
  }
}

}  // namespace mcr
