// SPDX-License-Identifier: Apache-2.0
#include "passes/schedule/iterations.h"

#include <algorithm>
#include <utility>

#include "base/digest.h"

namespace mcr {

std::size_t IterationFinder::add(uint64_t signature, uint64_t group) {
  if (count_ == kPatience && !marks_) newest_.clear();
  const auto number = count_++;
  if (number >= kPatience && !marks_) {
    if (count_ == kPatience + kRest) reset();
    return 0;
  }
  const auto key = digest(digest(0, signature), group);
  if (marks_) {
    seen(number) = {signature, key, kNone};
    return marked();
  }
  const auto [place, first] = newest_.try_emplace(key, number);
  seen(number) = {signature, key, first ? kNone : std::exchange(place->second, number)};
  return found();
}

void IterationFinder::take_back() {
  if (count_ == 0) return;  // all calls have been forgotten
  const auto number = --count_;
  if (marks_) {
    const bool marked = now_.marked;  // since then
    const auto& before = before_[number % kTakenBack];
    now_ = before.marks;
    now_.marked = now_.marked || marked;
    if (now_.interval <= kLongest) runs_[now_.interval] = before.run;
    return;
  }
  if (number >= kPatience) return;
  const auto& last = seen(number);
  for (auto before = last.before; before != kNone && number - before <= kLongest; before = seen(before).before) {
    auto& run = runs_[number - before];
    run = run.calls > 1 ? Run{number - 1, run.calls - 1} : Run{};
  }
  if (last.before == kNone) {
    newest_.erase(last.key);
  } else {
    newest_[last.key] = last.before;
  }
}

// Continues the runs of all periods after which the newest call comes again. The first period is not in a run, and this
// call is the first of the next iteration.
std::size_t IterationFinder::found() {
  const auto number = count_ - 1;
  std::size_t shortest = 0;
  for (auto before = seen(number).before; before != kNone && number - before <= kLongest;
       before = seen(before).before) {
    const auto period = number - before;
    auto& run = runs_[period];
    run = {number, run.calls > 0 && run.last + 1 == number ? run.calls + 1 : 1};
    if (shortest == 0 && run.calls > kLeast && repeated(period) && primitive(period)) shortest = period;
  }
  return shortest != 0 && least_rotation(shortest) ? shortest : 0;
}

// Whether the newest iteration of so many calls has been repeated as often as it must.
bool IterationFinder::repeated(std::size_t period) const {
  const auto demanded = demands_.find(period);
  return runs_[period].calls > ((demanded == demands_.end() ? kRepetitions : demanded->second) - 1) * period;
}

// Whether the newest iteration does not consist of several shorter ones.
bool IterationFinder::primitive(std::size_t period) const {
  for (std::size_t part = 1; part <= period / 2; ++part) {
    const auto& run = runs_[part];
    if (period % part == 0 && run.last + 1 == count_ && run.calls + part >= period) return false;
  }
  return true;
}

std::size_t IterationFinder::marked() {
  const auto number = count_ - 1;
  auto& [marked, since, interval] = now_;
  before_[number % kTakenBack] = {now_, interval <= kLongest ? runs_[interval] : Run{}};
  ++since;
  if (interval > 0 && interval <= kLongest && number >= interval) {
    auto& run = runs_[interval];
    const bool equal = seen(number - interval).key == seen(number).key;
    run = {number, !equal ? 0 : run.calls > 0 && run.last + 1 == number ? run.calls + 1 : 1};
  }
  if (!std::exchange(marked, false)) return 0;
  interval = std::exchange(since, 1) - 1;
  if (interval == 0 || interval > kLongest) return 0;
  return runs_[interval].last == number && repeated(interval) ? interval : 0;
}

void IterationFinder::mark() {
  if (!marks_) newest_ = {};
  marks_ = now_.marked = true;
}

// Whether the iteration that ends before the newest call is the least of its rotations.
bool IterationFinder::least_rotation(std::size_t period) const {
  const auto begin = count_ - 1 - period;
  const auto at = [&](std::size_t place) { return seen(begin + place % period).signature; };
  for (std::size_t shift = 1; shift < period; ++shift) {
    for (std::size_t i = 0; i < period; ++i) {
      if (at(shift + i) < at(i)) return false;
      if (at(shift + i) > at(i)) break;
    }
  }
  return true;
}

void IterationFinder::reset() {
  count_ = 0;
  newest_.clear();
  std::ranges::fill(runs_, Run{});
  now_.since = now_.interval = 0;
}

}  // namespace mcr
