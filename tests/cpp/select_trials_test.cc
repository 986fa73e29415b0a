// SPDX-License-Identifier: Apache-2.0
// Trials as the selection uses them: which candidates they try, and what becomes of their results.
#include <chrono>
#include <set>
#include <string>
#include <utility>

#include "check.h"
#include "choosing.h"

using namespace mcr;
using namespace choosing;

namespace {

constexpr int64_t kUncovered = 1 << 22;  // bytes: more than twice the largest size measured

// All candidates that get a call until the ranks must agree, and the key of their report.
std::pair<std::set<std::string>, std::string> trials(Chooser& chooser) {
  std::set<std::string> names;
  for (int i = 0; i < 1000; ++i) {  // far more than are needed
    Timing timing(true);
    auto* const chosen = chooser.group().selector().choose(call(Op::all_reduce, kUncovered / 4), kUncovered, timing);
    if (chosen == nullptr) break;
    names.insert(chosen->name);
  }
  const auto report = Trials::take(std::chrono::nanoseconds(0));
  CHECK(report && !Trials::take(std::chrono::nanoseconds(0)));
  return {names, report ? report->key() : ""};
}

// By their curves, `one:other` takes 2^3 times as long as `one` where trials are needed, and `two` 2^5 times.
Tuning three_lines() {
  Tuning tuning;
  tuning.costs = {line(Op::all_reduce, "one", 5, 5), line(Op::all_reduce, "one:other", 5, 8),
                  line(Op::all_reduce, "two", 5, 10)};
  return tuning;
}

}  // namespace

TEST(trials_leave_out_the_hopeless) {
  Chooser chooser(three_lines());
  chooser.group().selector().try_candidates("a group");
  const auto [names, key] = trials(chooser);
  CHECK(names == std::set<std::string>{"one", "one:other"});
  // New candidates or tables begin them anew: what the ranks agreed on before must not count.
  chooser.group().tune(three_lines());
  const auto [later_names, later_key] = trials(chooser);
  CHECK(later_names == names && later_key != key);
}

TEST(results_of_trials_become_curves_and_do_not_bring_an_excluded_candidate_back) {
  auto made = call(Op::all_reduce, kUncovered / 4);
  for (const bool excludes : {true, false}) {
    auto tuning = three_lines();
    made.size_hint = kUncovered;
    tuning.tried = {{made, "two", 1 << 16}, {made, "one:other", 2 << 16}, {made, "one", 3 << 16}};
    if (excludes) tuning.excluded = {{Op::all_reduce, false, false, DeviceType::CPU, "two"}};
    Chooser chooser(tuning);
    auto& selector = chooser.group().selector();
    selector.try_candidates("a group");
    const std::string best = excludes ? "one:other" : "two";
    CHECK(selector.explain(made).chosen->name == best && selector.explain(made).tried);
    CHECK(chooser.choose(made) == "one");  // as a call behind passes
    selector.refine(2);
    CHECK(chooser.choose(made) == best);
  }
}

TEST(explanations_of_trials) {
  auto made = call(Op::all_reduce, kUncovered / 4), half = call(Op::all_reduce, kUncovered / 2, DType::Half);
  made.size_hint = half.size_hint = kUncovered;
  auto tuning = three_lines();
  tuning.tried = {{made, "two", 1 << 16}, {made, "one", 2 << 16}, {half, "one:other", 1 << 16}, {half, "one", 2 << 16}};
  Chooser chooser(tuning);
  auto& selector = chooser.group().selector();
  selector.try_candidates("a group");
  const auto found = selector.explain(half);
  CHECK(found.tried && !found.trying && !found.guessed && found.chosen->name == "one:other");
  half.dtype = DType::BFloat16;  // by the curves of floats, until it is tried
  const auto guessed = selector.explain(half);
  CHECK(guessed.guessed && guessed.trying && !guessed.tried);
  const auto known = selector.explain(made);
  CHECK(known.tried && !known.trying && !known.guessed && known.chosen->name == "two");
  for (const auto& [candidate, cost, refined] : known.candidates) {
    CHECK(cost.has_value() == (candidate->variant == 0) && refined == cost.has_value());  // one:other was not tried
  }
  made.device = {DeviceType::CUDA, 0};
  CHECK(!selector.explain(made).trying);
  auto uneven = call(Op::all_to_all, 0);
  uneven.vectored = true;
  uneven.size_hint = kUncovered;  // as not all ranks may give it
  CHECK(!selector.explain(uneven).trying);
  made.device = {};
  tuning.rules = {{Op::all_reduce, false, 0, Tuning::Rule::kNoEnd, "one:other"}};
  chooser.group().tune(tuning);
  CHECK(selector.explain(made).chosen->name == "one:other" && !selector.explain(made).tried);
}

TEST(a_cost_model_has_the_blocking_calls_of_one_kind_of_device) {
  auto tuning = three_lines();
  for (auto cost : three_lines().costs) {
    cost.subject.asynchronous = true;
    tuning.costs.push_back(cost);
    cost.subject.asynchronous = false;
    cost.subject.device = DeviceType::CUDA;
    cost.subject.vectored = true;
    tuning.costs.push_back(cost);
  }
  Chooser chooser(tuning);
  const auto model = chooser.group().selector().cost_model(DeviceType::CPU);
  CHECK(model.costs().size() == 3 && model.resources().size() == 2);
  for (const auto& [subject, cost] : model.costs()) CHECK(!subject.vectored && cost.demands.size() == 1);
}
