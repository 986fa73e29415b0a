// SPDX-License-Identifier: Apache-2.0
#include "choose/select.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "group/group.h"
#include "ranks.h"

using namespace mcr;

namespace {

constexpr int kRanks = 4;

// Has no reductions of integers, and a variant for all_reduce.
class Declared : public Communicator {
 public:
  explicit Declared(bool variant) : variant_(variant) {}
  bool supports(const Call& call) const override {
    if (variant_) return call.red != RedOp::AVG;
    return row(call.op).is(kReduces) ? call.dtype == DType::Float : call.op != Op::gather;
  }
  void issue(const Call&, Lane&) override {}
  std::span<const std::string_view> variants() const override {
    return variant_ ? std::span<const std::string_view>(kVariants) : std::span<const std::string_view>();
  }
  bool varies(const Call& call, int /*variant*/) const override { return call.op == Op::all_reduce; }

 private:
  static constexpr std::array<std::string_view, 1> kVariants = {"other"};
  bool variant_;
};

// Receives from named ranks only.
class Named : public Declared {
 public:
  Named() : Declared(true) {}
  bool supports(const Call& call) const override { return call.op != Op::recv || call.root != kAnyRank; }
};

// Has sums on the host alone.
class Adder : public Declared {
 public:
  Adder() : Declared(true) {}
  bool supports(const Call& call) const override {
    return call.red == RedOp::SUM && call.device.type == DeviceType::CPU;
  }
};

// Has small counts, as Open MPI.
class Narrow : public Declared {
 public:
  Narrow() : Declared(true) {}
  bool supports(const Call& call) const override {
    return std::max(message_elements(call, kRanks), call.size_hint / size_of(call.dtype)) <= INT_MAX;
  }
};

// A group with the candidates one, one:other, two.
class Chooser {
 public:
  explicit Chooser(Tuning tuning = {})
      : one_([] { return std::make_unique<Declared>(true); }, kRanks, 0, "one"),
        two_([] { return std::make_unique<Declared>(false); }, kRanks, 0, "two") {
    one_.group().connect(two_.backend(), 0);
    one_.group().tune(std::move(tuning));
  }
  std::string choose(const Call& call) { return one_.group().choose(call).name; }
  Group& group() { return one_.group(); }

 private:
  ranks::Alone one_, two_;
};

Call call(Op op, int64_t count, DType dtype = DType::Float) {
  Call made;
  made.op = op;
  made.dtype = dtype;
  made.in.count = made.out.count = count;
  return made;
}

Tuning::Cost line(Op op, const std::string& candidate, int32_t small, int32_t large,
                  DTypeClass types = DTypeClass::Float, bool vectored = false) {
  const CostCurve curve({{4, small * 65536}, {1 << 20, large * 65536}});
  return {{op, vectored, false, DeviceType::CPU, types}, candidate, curve};
}

}  // namespace

TEST(sizes_are_what_all_ranks_know) {
  CHECK(message_bytes(call(Op::all_reduce, 10), kRanks) == 40);
  CHECK(message_bytes(call(Op::all_gather, 10), kRanks) == 160);
  CHECK(message_bytes(call(Op::scatter, 10), kRanks) == 160);
  CHECK(message_bytes(call(Op::all_to_all, 40), kRanks) == 160);
  CHECK(message_bytes(call(Op::barrier, 0), kRanks) == 0);
  auto vectored = call(Op::all_to_all, 40);
  vectored.vectored = true;
  CHECK(message_bytes(vectored, kRanks) == -1);
  vectored.size_hint = 77;
  CHECK(message_bytes(vectored, kRanks) == 77);
  const std::vector<int64_t> counts = {1, 2, 3, 4};
  auto gathered = call(Op::all_gather, 1);
  gathered.vectored = true;
  gathered.out_counts = counts;
  CHECK(message_bytes(gathered, kRanks) == 40);
}

TEST(without_measurements_the_first_that_has_it) {
  Chooser chooser;
  CHECK(chooser.choose(call(Op::all_reduce, 1)) == "one");
  auto average = call(Op::all_reduce, 1);
  average.red = RedOp::AVG;  // a sum and a division
  CHECK(chooser.choose(average) == "one");
}

TEST(a_backend_that_moves_no_data_only_where_there_is_no_other) {
  ranks::Alone idle([] { return std::make_unique<ranks::Nothing>(); }, kRanks, 0, "idle", false);
  CHECK(idle.group().choose(call(Op::gather, 1)).name == "idle");
  ranks::Alone two([] { return std::make_unique<Declared>(false); }, kRanks, 0, "two");
  idle.group().connect(two.backend(), 0);
  CHECK(idle.group().choose(call(Op::all_reduce, 1)).name == "two");
  CHECK(idle.group().choose(call(Op::gather, 1)).name == "two");  // which emulates it
  Tuning tuning;
  tuning.costs = {line(Op::all_reduce, "idle", 1, 1), line(Op::all_reduce, "two", 5, 15)};
  idle.group().tune(std::move(tuning));
  CHECK(idle.group().choose(call(Op::all_reduce, 1)).name == "two");
  CHECK(idle.group().selector().explain(call(Op::all_reduce, 1)).candidates.size() == 1);
}

TEST(the_cheapest_by_size_among_those_that_have_it) {
  Tuning tuning;
  tuning.costs = {line(Op::all_reduce, "one", 5, 15), line(Op::all_reduce, "one:other", 8, 9),
                  line(Op::all_reduce, "two", 1, 1)};
  Chooser chooser(tuning);
  CHECK(chooser.choose(call(Op::all_reduce, 1)) == "two");
  // `two` has no integers; their class has not been measured, so that of floats stands for it.
  CHECK(chooser.choose(call(Op::all_reduce, 1, DType::Int)) == "one");
  CHECK(chooser.choose(call(Op::all_reduce, 1 << 18, DType::Int)) == "one:other");
  auto asked = call(Op::all_reduce, 1, DType::Int);
  const auto explained = chooser.group().selector().explain(asked);
  CHECK(explained.guessed && explained.rule < 0 && explained.candidates.size() == 2);
}

TEST(asynchronous_calls_have_their_own_curves) {
  const auto asynchronous = [](Tuning::Cost cost) {
    cost.subject.asynchronous = true;
    return cost;
  };
  Tuning tuning;
  tuning.costs = {line(Op::all_reduce, "one", 1, 1),
                  line(Op::all_reduce, "two", 2, 2),
                  asynchronous(line(Op::all_reduce, "one", 2, 2)),
                  asynchronous(line(Op::all_reduce, "two", 1, 1)),
                  line(Op::broadcast, "one", 2, 2, DTypeClass::Any),
                  line(Op::broadcast, "two", 1, 1, DTypeClass::Any)};
  Chooser chooser(tuning);
  auto started = call(Op::all_reduce, 1);
  started.asynchronous = true;
  CHECK(chooser.choose(call(Op::all_reduce, 1)) == "one");
  CHECK(chooser.choose(started) == "two" && !chooser.group().selector().explain(started).guessed);
  started.dtype = DType::BFloat16;  // the nearest are the asynchronous ones of floats
  const auto explained = chooser.group().selector().explain(started);
  CHECK(explained.guessed && explained.candidates.front().cost == 2 * 65536);
  auto unknown = call(Op::broadcast, 1);
  unknown.asynchronous = true;
  CHECK(chooser.choose(unknown) == "two" && chooser.group().selector().explain(unknown).guessed);
}

TEST(a_variant_is_no_candidate_where_it_does_nothing) {
  Tuning tuning;
  tuning.costs = {line(Op::broadcast, "one:other", 1, 1, DTypeClass::Any),
                  line(Op::broadcast, "two", 2, 2, DTypeClass::Any)};
  Chooser chooser(tuning);
  CHECK(chooser.choose(call(Op::broadcast, 1)) == "two");
}

TEST(a_receive_goes_where_its_send_does) {
  Tuning tuning;
  tuning.costs = {line(Op::send, "one", 9, 1, DTypeClass::Any), line(Op::send, "two", 1, 9, DTypeClass::Any)};
  Chooser chooser(tuning);
  for (const int64_t count : {int64_t{1}, int64_t{100}, int64_t{1} << 18}) {
    CHECK(chooser.choose(call(Op::send, count)) == chooser.choose(call(Op::recv, count)));
  }
  CHECK(chooser.choose(call(Op::send, 1)) == "two" && chooser.choose(call(Op::send, 1 << 18)) == "one");
}

TEST(a_receive_from_any_rank_decides_for_no_other) {
  ranks::Alone one([] { return std::make_unique<Named>(); }, kRanks, 0, "one");
  ranks::Alone two([] { return std::make_unique<Declared>(false); }, kRanks, 0, "two");
  one.group().connect(two.backend(), 0);
  auto any = call(Op::recv, 1);
  any.root = kAnyRank;
  CHECK(one.group().choose(any).name == "two");
  CHECK(one.group().choose(call(Op::recv, 1)).name == "one" && one.group().choose(call(Op::send, 1)).name == "one");
  CHECK(one.group().choose(any).name == "two");
}

// One rank alone may ask for it.
TEST(a_very_large_size_decides_for_no_other) {
  ranks::Alone one([] { return std::make_unique<Narrow>(); }, kRanks, 0, "one");
  ranks::Alone two([] { return std::make_unique<Declared>(false); }, kRanks, 0, "two");
  one.group().connect(two.backend(), 0);
  auto large = call(Op::all_to_all, 0, DType::Byte);
  large.vectored = true;
  large.size_hint = int64_t{3} << 30;
  CHECK(one.group().selector().explain(large).chosen->name == "two");
  auto small = large;
  small.size_hint = 1024;
  CHECK(one.group().choose(small).name == "one" && one.group().choose(large).name == "two");
  // The first call of its kind has equal counts.
  const auto many = call(Op::all_gather, int64_t{3} << 30, DType::Byte), few = call(Op::all_gather, 1, DType::Byte);
  CHECK(one.group().choose(many).name == "two" && one.group().choose(few).name == "one");
  // A rule holds for it, and an excluded candidate does not take its place.
  Tuning tuning;
  tuning.rules = {{Op::all_gather, false, 0, Tuning::Rule::kNoEnd, "one"}};
  tuning.excluded = {{Op::all_to_all, false, false, DeviceType::CPU, "two"}};
  one.group().tune(std::move(tuning));
  CHECK(one.group().choose(many).name == "one" && one.group().choose(large).name == "one");
}

TEST(a_reduction_or_a_device_decides_for_no_other) {
  ranks::Alone one([] { return std::make_unique<Adder>(); }, kRanks, 0, "one");
  ranks::Alone two([] { return std::make_unique<Declared>(true); }, kRanks, 0, "two");
  one.group().connect(two.backend(), 0);
  auto made = call(Op::all_reduce, 1, DType::Int);
  CHECK(one.group().choose(made).name == "one");
  made.red = RedOp::BXOR;
  CHECK(one.group().choose(made).name == "two");
  made.red = RedOp::SUM;
  made.device = {DeviceType::CUDA, 0};
  CHECK(one.group().choose(made).name == "two");
  made.device = {};
  CHECK(one.group().choose(made).name == "one");
}

TEST(sizes_that_ranks_may_not_share_are_not_used) {
  Tuning tuning;
  tuning.costs = {line(Op::all_to_all, "one", 4, 12, DTypeClass::Any, true),
                  line(Op::all_to_all, "two", 6, 7, DTypeClass::Any, true)};
  Chooser chooser(tuning);
  for (const int64_t count : {int64_t{4}, int64_t{1} << 20}) {
    auto vectored = call(Op::all_to_all, count);
    vectored.vectored = true;
    CHECK(chooser.choose(vectored) == "two");  // the lower mean
    vectored.size_hint = 4;
    CHECK(chooser.choose(vectored) == "one");
  }
}

TEST(rules_overrule_and_the_last_one_counts) {
  Tuning tuning;
  tuning.costs = {line(Op::all_reduce, "one", 1, 1), line(Op::all_reduce, "two", 5, 5)};
  tuning.rules = {{Op::all_reduce, false, 0, 1024, "two"},
                  {Op::all_reduce, false, 512, 2048, "one:other"},
                  {Op::all_to_all, true, 0, Tuning::Rule::kNoEnd, "two"},
                  {Op::gather, false, 0, 64, "absent"}};
  Chooser chooser(tuning);
  const auto at = [&](int64_t bytes) { return chooser.choose(call(Op::all_reduce, bytes / 4)); };
  CHECK(at(0) == "two" && at(508) == "two");
  CHECK(at(512) == "one:other" && at(2044) == "one:other");
  CHECK(at(2048) == "one" && at(1 << 24) == "one");
  const auto ruled = [&](int64_t bytes) { return chooser.group().selector().ruled(call(Op::all_reduce, bytes / 4)); };
  CHECK(ruled(0)->name == "two" && ruled(512)->name == "one:other" && ruled(2048) == nullptr);
  const auto rule = [&](int64_t bytes) {
    return chooser.group().selector().explain(call(Op::all_reduce, bytes / 4)).rule;
  };
  CHECK(rule(0) == 0 && rule(512) == 1 && rule(2048) == -1);
  const auto unruled = [&](const Call& call) { return chooser.group().choose_unruled(call).name; };
  CHECK(unruled(call(Op::all_reduce, 0)) == "one" && unruled(call(Op::all_reduce, 512)) == "one");
  auto vectored = call(Op::all_to_all, 8);
  vectored.vectored = true;
  CHECK(chooser.choose(vectored) == "two" && unruled(vectored) == "one");
  CHECK(chooser.group().selector().explain(vectored).rule == 2);
  CHECK(chooser.choose(call(Op::all_to_all, 8)) == "one");  // with equal counts: another form
  // Both sides of a message follow the rule. Calls whose size not all ranks know follow rules for all sizes alone.
  tuning.rules = {{Op::send, false, 0, Tuning::Rule::kNoEnd, "two"},
                  {Op::all_to_all, true, 0, 1024, "two"},
                  {Op::all_to_all, true, 2048, Tuning::Rule::kNoEnd, "two"}};
  Chooser partly(tuning);
  CHECK(partly.choose(call(Op::send, 1)) == "two" && partly.choose(call(Op::recv, 1)) == "two");
  CHECK(partly.choose(vectored) == "one");
  for (const auto& [hint, name] : {std::pair{1023, "two"}, {1024, "one"}, {2047, "one"}, {2048, "two"}}) {
    vectored.size_hint = hint;
    CHECK(partly.choose(vectored) == name);
  }
  // As if the call named it: it need not have it.
  tuning.rules = {{Op::all_reduce, false, 0, Tuning::Rule::kNoEnd, "two"}};
  Chooser forced(tuning);
  CHECK(forced.choose(call(Op::all_reduce, 4, DType::Int)) == "two");
}

TEST(excluded_candidates_are_not_chosen) {
  const auto blocking = [](Op op, const std::string& candidate) {
    return Tuning::Excluded{op, false, false, DeviceType::CPU, candidate};
  };
  Tuning tuning;
  tuning.costs = {line(Op::all_reduce, "two", 5, 5), line(Op::gather, "one", 1, 1, DTypeClass::Any)};
  tuning.excluded = {blocking(Op::all_reduce, "one"), blocking(Op::gather, "one"), blocking(Op::send, "one")};
  Chooser chooser(tuning);
  auto made = call(Op::all_reduce, 1);
  const auto explained = chooser.group().selector().explain(made);
  CHECK(explained.chosen->name == "two" && explained.candidates.size() == 2);
  CHECK(explained.excluded.size() == 1 && explained.excluded.front()->name == "one");
  CHECK(chooser.choose(call(Op::recv, 1)) == "two");
  CHECK(chooser.choose(call(Op::broadcast, 1)) == "one");
  // Other forms are expected to fail too, unless they were measured.
  made.asynchronous = true;
  CHECK(chooser.group().selector().explain(made).excluded.size() == 1);
  auto measured = line(Op::all_reduce, "one", 1, 1);
  measured.subject.asynchronous = true;
  tuning.costs.push_back(measured);
  chooser.group().tune(tuning);
  CHECK(chooser.choose(made) == "one" && chooser.choose(call(Op::all_reduce, 1)) == "two");
  // `two` emulates gathers; the curve of the form with equal counts does not bring `one` back.
  auto gathered = call(Op::gather, 1);
  CHECK(chooser.choose(gathered) == "two");
  gathered.vectored = true;
  CHECK(chooser.choose(gathered) == "two" && chooser.group().selector().explain(gathered).candidates.empty());
  // A group must have a choice.
  tuning.excluded = {blocking(Op::all_reduce, "one"), blocking(Op::all_reduce, "two"),
                     blocking(Op::all_reduce, "one:other")};
  chooser.group().tune(tuning);
  CHECK(chooser.choose(call(Op::all_reduce, 1)) == "two");
}

namespace {

constexpr int64_t kUncovered = 1 << 22;  // bytes: more than twice the largest size measured

// All candidates that get a call until the ranks must agree, and the key of their report.
std::pair<std::set<std::string>, std::string> trials(Chooser& chooser) {
  std::set<std::string> names;
  while (true) {
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

TEST(new_measurements_replace_what_was_remembered) {
  Tuning tuning;
  tuning.costs = {line(Op::all_reduce, "one", 1, 1), line(Op::all_reduce, "two", 5, 5)};
  Chooser chooser(tuning);
  CHECK(chooser.choose(call(Op::all_reduce, 4)) == "one");
  tuning.costs = {line(Op::all_reduce, "one", 5, 5), line(Op::all_reduce, "two", 1, 1)};
  chooser.group().tune(tuning);
  CHECK(chooser.choose(call(Op::all_reduce, 4)) == "two");
  chooser.group().disconnect("two");
  CHECK(chooser.choose(call(Op::all_reduce, 4)) == "one");
}
