// SPDX-License-Identifier: Apache-2.0
#include "choose/select.h"

#include <algorithm>
#include <climits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "choosing.h"
#include "group/group.h"
#include "ranks.h"

using namespace mcr;
using namespace choosing;

namespace {

// Receives from named ranks only.
class Named : public Declared {
 public:
  Named() : Declared(true) {}
  bool supports(const Call& call) const override { return call.op != Op::recv || call.root != kAnyRank; }
};

// Has nothing.
class Silent : public Declared {
 public:
  Silent() : Declared(false) {}
  bool supports(const Call&) const override { return false; }
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

TEST(an_exclusion_holds_for_its_form_and_device) {
  struct Row {
    bool vectored, asynchronous;
    DeviceType device;
    bool plain_too, uneven_too, started_too;  // whether these calls of the host lose the candidate
  };
  const auto cpu = DeviceType::CPU, cuda = DeviceType::CUDA;
  for (const auto& row : {Row{false, false, cpu, true, true, true}, Row{true, false, cpu, false, true, false},
                          Row{false, true, cpu, false, false, true}, Row{false, false, cuda, false, false, false}}) {
    Tuning tuning;
    tuning.excluded = {{Op::all_to_all, row.vectored, row.asynchronous, row.device, "one"}};
    // Neither what was measured on a device nor a row without times brings it back.
    tuning.costs = {line(Op::all_to_all, "one", 1, 1, DTypeClass::Any, true), {}};
    tuning.costs[0].subject.device = cuda;
    tuning.costs[1] = {{Op::all_to_all, true, false, cpu, DTypeClass::Any}, "one", {}};
    Chooser chooser(tuning);
    auto made = call(Op::all_to_all, 8);
    CHECK(chooser.choose(made) == (row.plain_too ? "two" : "one"));
    made.asynchronous = true;
    CHECK(chooser.choose(made) == (row.started_too ? "two" : "one"));
    made.asynchronous = false;
    made.vectored = true;
    CHECK(chooser.choose(made) == (row.uneven_too ? "two" : "one"));
  }
}

TEST(the_stand_in_of_excluded_candidates_can_do_the_call) {
  ranks::Alone one([] { return std::make_unique<Declared>(true); }, kRanks, 0, "one");
  ranks::Alone none([] { return std::make_unique<Silent>(); }, kRanks, 0, "none");
  ranks::Alone two([] { return std::make_unique<Declared>(true); }, kRanks, 0, "two");
  one.group().connect(none.backend(), 0);
  one.group().connect(two.backend(), 0);
  Tuning tuning;
  for (const auto* name : {"one", "two", "one:other", "two:other"}) {
    tuning.excluded.push_back({Op::send, false, false, DeviceType::CPU, name});
  }
  one.group().tune(std::move(tuning));
  CHECK(one.group().choose(call(Op::send, 1)).name == "one");  // `none` cannot: so the exclusion is ignored
}

TEST(an_uneven_call_goes_by_uneven_calls_of_other_types_first) {
  Tuning tuning;
  tuning.costs = {line(Op::reduce_scatter, "one", 1, 1, DTypeClass::Float, true),
                  line(Op::reduce_scatter, "two", 2, 2, DTypeClass::Float, true),
                  line(Op::reduce_scatter, "one", 2, 2, DTypeClass::Half, false),
                  line(Op::reduce_scatter, "two", 1, 1, DTypeClass::Half, false)};
  ranks::Alone one([] { return std::make_unique<Declared>(true); }, kRanks, 0, "one");
  ranks::Alone two([] { return std::make_unique<Declared>(true); }, kRanks, 0, "two");
  one.group().connect(two.backend(), 0);
  one.group().tune(std::move(tuning));
  auto made = call(Op::reduce_scatter, 8, DType::Half);
  CHECK(one.group().choose(made).name == "two");
  made.vectored = true;
  CHECK(one.group().choose(made).name == "one");
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
