// SPDX-License-Identifier: Apache-2.0
#include "select.h"

#include <algorithm>
#include <climits>
#include <numeric>
#include <utility>

namespace mcr {

namespace {

const CostCurve kUnknown;

int64_t sum(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

// A receive costs what the send does.
Op subject(Op op) { return op == Op::recv ? Op::send : op; }

bool any_known(const std::vector<const CostCurve*>& curves) {
  return std::any_of(curves.begin(), curves.end(), [](const CostCurve* curve) { return curve->known(); });
}

}  // namespace

int64_t message_bytes(const Call& call, int ranks) {
  if (call.size_hint >= 0) return call.size_hint;
  const int64_t element = size_of(call.dtype);
  if (call.vectored) {
    if (call.op == Op::all_gather) return sum(call.out_counts) * element;
    if (call.op == Op::reduce_scatter) return sum(call.in_counts) * element;
    return -1;
  }
  switch (row(call.op).extent) {
    case Extent::Same:
      return call.out.count * element;
    case Extent::Gather:
      return call.in.count * ranks * element;
    case Extent::Scatter:
      return call.out.count * ranks * element;
    case Extent::Exchange:
      return call.in.count * element;
    case Extent::None:
      break;
  }
  return 0;
}

bool native(const Communicator& communicator, Call call) {
  if (communicator.supports(call)) return true;
  if (call.red != RedOp::AVG || !row(call.op).is(kReduces)) return false;
  call.red = RedOp::SUM;
  return communicator.supports(call);
}

void Selector::reset(std::list<Slot>& slots, Tuning tuning) {
  std::lock_guard lock(mutex_);
  slots_ = &slots;
  tuning_ = std::move(tuning);
  for (auto& form : forms_) form = nullptr;
  tables_.clear();
  choices_.clear();
}

Slot& Selector::choose(const Call& call) {
  const auto bytes = message_bytes(call, ranks_);
  const Range& range = range_of(remembered(call), bytes);
  // Only very large counts make a communicator refuse what it has for its types.
  if (bytes <= INT_MAX || range.forced || native(*range.slot->communicator, call)) return *range.slot;
  for (auto& slot : *slots_) {
    if (slot.variant == 0 && native(*slot.communicator, call)) return slot;
  }
  return *range.slot;
}

const Selector::Range& Selector::range_of(const Choice& choice, int64_t bytes) const {
  if (bytes < 0) return choice.unsized;
  std::size_t i = choice.ranges.size() - 1;
  while (choice.ranges[i].from > bytes) --i;
  return choice.ranges[i];
}

const Selector::Choice& Selector::remembered(const Call& call) {
  const auto form = (static_cast<std::size_t>(call.op) * 2 + (call.vectored ? 1 : 0)) * 2 +
                    static_cast<std::size_t>(call.device.type);
  const auto reduction = row(call.op).is(kReduces) ? static_cast<std::size_t>(call.red) : 0;
  const auto types = static_cast<std::size_t>(call.dtype) * kReductions.size() + reduction;
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

const Selector::Choice& Selector::decide(const Call& call) {
  const Field compared = field(call);
  Choice choice;
  if (any_known(compared.curves)) {
    for (const auto& range : cheapest(compared.curves)) {
      choice.ranges.push_back({range.from, compared.slots[range.curve], false});
    }
    choice.unsized = {0, compared.slots[cheapest_overall(compared.curves)], false};
  } else {
    choice.unsized = {0, compared.slots.empty() ? &slots_->front() : compared.slots.front(), false};
    choice.ranges = {choice.unsized};
  }
  for (const auto& rule : tuning_.rules) {
    if (rule.op != subject(call.op) || rule.vectored != call.vectored) continue;
    for (auto& slot : *slots_) {
      if (slot.name == rule.candidate) overlay(choice, rule, slot);
    }
  }
  return *choices_.emplace_back(std::make_unique<const Choice>(std::move(choice)));
}

void Selector::overlay(Choice& choice, const Tuning::Rule& rule, Slot& slot) const {
  if (rule.from == 0 && rule.to == Tuning::Rule::kNoEnd) choice.unsized = {0, &slot, true};
  std::vector<Range> ranges;
  Range resumed = range_of(choice, rule.to);
  resumed.from = rule.to;
  for (const auto& range : choice.ranges) {
    if (range.from < rule.from) ranges.push_back(range);
  }
  ranges.push_back({rule.from, &slot, true});
  if (rule.to != Tuning::Rule::kNoEnd) ranges.push_back(resumed);
  for (const auto& range : choice.ranges) {
    if (range.from > rule.to) ranges.push_back(range);
  }
  choice.ranges = std::move(ranges);
}

std::vector<const CostCurve*> Selector::curves_of(const std::vector<Slot*>& slots, const Call& call, bool vectored,
                                                  DTypeClass types) const {
  std::vector<const CostCurve*> curves(slots.size(), &kUnknown);
  for (const auto& cost : tuning_.costs) {
    if (cost.op != subject(call.op) || cost.vectored != vectored || cost.device != call.device.type) continue;
    if (cost.types != types) continue;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i]->name == cost.candidate) curves[i] = &cost.curve;
    }
  }
  return curves;
}

// Where the call's class of types, or its vectored form, has not been measured, the nearest that has been stands for
// it.
Selector::Field Selector::field(const Call& call) const {
  Field result;
  for (auto& slot : *slots_) {
    if (!native(*slot.communicator, call)) continue;
    if (slot.variant == 0 || slot.communicator->varies(call)) result.slots.push_back(&slot);
  }
  const auto own = row(call.op).is(kReduces) ? class_of(call.dtype) : DTypeClass::Any;
  const auto near = row(call.op).is(kReduces) ? DTypeClass::Float : DTypeClass::Any;
  for (const auto& [vectored, types] :
       {std::pair{call.vectored, own}, {call.vectored, near}, {false, own}, {false, near}}) {
    result.curves = curves_of(result.slots, call, vectored, types);
    if (any_known(result.curves)) break;
    result.guessed = true;
  }
  return result;
}

Selector::Explanation Selector::explain(const Call& call) {
  Explanation result{};
  const auto bytes = message_bytes(call, ranks_);
  const Range& range = range_of(remembered(call), bytes);
  result.chosen = &choose(call);
  result.forced = range.forced;
  const Field compared = field(call);
  result.guessed = compared.guessed && any_known(compared.curves);
  for (std::size_t i = 0; i < compared.slots.size(); ++i) {
    const auto* curve = compared.curves[i];
    result.candidates.push_back({compared.slots[i], curve->known() ? curve : nullptr});
  }
  return result;
}

}  // namespace mcr
