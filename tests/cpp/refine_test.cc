// SPDX-License-Identifier: Apache-2.0
#include "choose/refine.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "check.h"
#include "group/group.h"
#include "ranks.h"

using namespace mcr;

namespace {

using Part = Refinement::Part;

constexpr int kRanks = 4;
constexpr int64_t kPeriod = 10;

Call call(Op op, int64_t count, DType dtype = DType::Float) {
  Call made;
  made.op = op;
  made.dtype = dtype;
  made.in.count = made.out.count = count;
  return made;
}

// Does whatever it is asked on the spot, and counts; or fails before it is asked.
class Instant : public Communicator {
 public:
  Instant(int& calls, const bool& fails) : calls_(calls), fails_(fails) {}
  bool supports(const Call& call) const override { return call.dtype == DType::Float || call.dtype == DType::Long; }
  bool takes_in_place(const Call&) const override {
    if (fails_) throw Error(ErrorCode::Backend, "no memory");
    return false;
  }
  void issue(const Call&, Lane& lane) override {
    ++calls_;
    if (!lane.blocking()) lane.track(std::make_unique<Done>());
  }

 private:
  struct Done : Request {
    bool poll() override { return true; }
  };
  int& calls_;
  const bool& fails_;
};

// A group with the candidates a, b and c.
class Trio {
 public:
  explicit Trio(Tuning tuning = {})
      : a_(maker("a"), kRanks, 0, "a"), b_(maker("b"), kRanks, 0, "b"), c_(maker("c"), kRanks, 0, "c") {
    group().connect(b_.backend(), 0);
    group().connect(c_.backend(), 0);
    group().tune(std::move(tuning));
  }
  Group& group() { return a_.group(); }
  Selector& selector() { return group().selector(); }
  std::string choose(const Call& call) { return group().choose(call).name; }

  /// Runs the call that many times; how often each candidate got it.
  std::map<std::string, int> run(Call call, int times, Candidate* candidate = nullptr) {
    std::vector<std::byte> data(static_cast<std::size_t>(call.out.count * size_of(call.dtype)));
    call.out.data = call.in.data = data.data();
    clear();
    for (int i = 0; i < times; ++i) ranks::run(group(), call, candidate);
    return calls_;
  }
  void fail(bool fails) { fails_ = fails; }
  std::map<std::string, int>& calls() { return calls_; }
  void clear() {
    for (auto& [name, count] : calls_) count = 0;
  }

 private:
  ranks::Alone::Make maker(const std::string& name) {
    return [this, name] { return std::make_unique<Instant>(calls_[name], fails_); };
  }

  std::map<std::string, int> calls_;
  bool fails_ = false;
  ranks::Alone a_, b_, c_;
};

Tuning::Cost flat(Op op, const std::string& candidate, int32_t cost, DTypeClass types = DTypeClass::Float) {
  const CostCurve curve({{4, cost * 65536}, {1 << 20, cost * 65536}});
  return {{op, false, false, DeviceType::CPU, types}, candidate, curve};
}

// a takes 2 units of log2, b 3, c 4.
Tuning known() {
  Tuning tuning;
  tuning.costs = {flat(Op::all_reduce, "a", 2), flat(Op::all_reduce, "b", 3), flat(Op::all_reduce, "c", 4)};
  return tuning;
}

constexpr int64_t kNone = Refinement::kUnknown;
constexpr int64_t unit(int64_t cost) { return cost * 65536; }

}  // namespace

TEST(one_call_of_a_period_is_a_trial_and_one_is_timed) {
  for (const int64_t period : {int64_t{2}, int64_t{3}, int64_t{50}}) {
    Refinement refinement(period, 2);
    std::set<int> places;
    for (int window = 0; window < 20; ++window) {
      int trials = 0, timed = 0;
      for (int i = 0; i < period; ++i) {
        const auto part = refinement.next(call(Op::all_reduce, 8), 32).part;
        trials += part == Part::Trial ? 1 : 0;
        timed += part == Part::Timed ? 1 : 0;
        if (part == Part::Trial) places.insert(i);
      }
      CHECK(trials == 1 && timed == 1);
    }
    CHECK(std::cmp_greater(places.size(), std::min<int64_t>(period, 10) / 2));  // not always one line of a loop
  }
}

TEST(buckets_are_op_form_types_and_about_one_size) {
  Refinement refinement(kPeriod, 2);
  auto vectored = call(Op::all_gather, 8);
  vectored.vectored = true;
  refinement.next(call(Op::all_reduce, 8), 1024);
  refinement.next(call(Op::all_reduce, 8, DType::Double), 1100);  // the class of floats, less than a quarter octave on
  CHECK(refinement.buckets().size() == 1 && refinement.buckets()[0]->calls == 2);
  refinement.next(call(Op::all_reduce, 8, DType::Half), 1024);
  refinement.next(call(Op::all_reduce, 8), 1300);
  refinement.next(call(Op::all_gather, 8), 1024);
  refinement.next(call(Op::all_gather, 8, DType::Int), 1024);  // moves data: all types alike
  refinement.next(vectored, 1024);
  CHECK(refinement.buckets().size() == 5);
}

TEST(trials_go_to_who_has_waited_longest_and_seldom_to_the_slow) {
  Refinement refinement(2, 4);
  const Refinement::Option mine{0, true, unit(5)};
  const std::vector<Refinement::Option> others = {{1, true, unit(8)}, {2, true, unit(5)}, {3, true, unit(30)}};
  std::vector<int> tries(4);
  for (int i = 0; i < 2 * 1000; ++i) {
    const auto turn = refinement.next(call(Op::all_reduce, 8), 32);
    if (turn.part != Part::Trial) continue;
    if (const auto* picked = refinement.pick(*turn.count.bucket, mine, others)) ++tries[picked->candidate];
  }
  CHECK(tries[0] == 0);
  CHECK(tries[1] >= 110 && tries[1] <= 125);  // 2^3 times as slow: every 8th window, or the next
  CHECK(tries[2] > 800);                      // what the others leave
  CHECK(tries[3] >= 15 && tries[3] <= 16);    // 2^25 times as slow: every 64th all the same
  CHECK(tries[1] + tries[2] + tries[3] <= 1000);
  // If the chosen one's time is unknown, no other one is known to be slow.
  Refinement unknown(2, 4);
  int made = 0;
  for (int i = 0; i < 2 * 10; ++i) {
    const auto turn = unknown.next(call(Op::all_reduce, 8), 32);
    if (turn.part != Part::Trial) continue;
    made += unknown.pick(*turn.count.bucket, {0, false, 0}, std::vector{others[2]}) == nullptr ? 0 : 1;
  }
  CHECK(made == 10);
}

TEST(who_has_no_curve_goes_first_until_there_is_enough_for_one) {
  Refinement refinement(2, 3);
  const Refinement::Option mine{0, true, unit(5)};
  const std::vector<Refinement::Option> others = {{1, true, unit(5)}, {2, false, 0}};
  std::string order;
  for (int i = 0; i < 2 * 12; ++i) {
    const auto turn = refinement.next(call(Op::all_reduce, 8), 32);
    if (turn.part != Part::Trial) continue;
    const auto* picked = refinement.pick(*turn.count.bucket, mine, others);
    order += picked == nullptr ? '-' : static_cast<char>('0' + picked->candidate);
  }
  CHECK(order == "222222222111");
}

TEST(costs_are_medians_of_the_last_times_once_there_are_enough) {
  Refinement refinement(2, 2);
  auto& series = refinement.next(call(Op::all_reduce, 8), 32).count.bucket->series[1];
  for (std::size_t i = 1; i < Refinement::kEnough; ++i) refinement.add(series, std::chrono::nanoseconds(1024));
  CHECK(refinement.costs() == std::vector<int64_t>{kNone, kNone});
  refinement.add(series, std::chrono::nanoseconds(1 << 30));
  CHECK(refinement.costs() == std::vector<int64_t>{kNone, unit(10)});
  for (std::size_t i = 1; i < Refinement::kEnough; ++i) refinement.add(series, std::chrono::nanoseconds(32));
  refinement.add(series, std::chrono::nanoseconds(32));  // 8 of 1024, 9 of 32, one far above
  CHECK(refinement.costs()[1] == unit(10));
  for (std::size_t i = 0; i < Refinement::kKept; ++i) refinement.add(series, std::chrono::nanoseconds(64));
  CHECK(refinement.costs()[1] == unit(6));
}

TEST(the_same_calls_have_the_same_turns_whatever_the_times) {
  Refinement one(7, 3), two(7, 3);
  const Refinement::Option mine{0, true, unit(5)};
  const std::vector<Refinement::Option> others = {{1, true, unit(6)}, {2, false, 0}};
  for (int i = 0; i < 5000; ++i) {
    const auto made = call(i % 3 == 0 ? Op::all_reduce : Op::broadcast, 8);
    const int64_t bytes = 1 << (i * 7 % 11);
    const auto a = one.next(made, bytes), b = two.next(made, bytes);
    CHECK(a.part == b.part);
    if (a.part == Part::Nothing) continue;
    const auto* picked = a.part == Part::Trial ? one.pick(*a.count.bucket, mine, others) : &mine;
    const auto* other = b.part == Part::Trial ? two.pick(*b.count.bucket, mine, others) : &mine;
    CHECK(picked == other);
    if (picked == nullptr) continue;
    one.add(a.count.bucket->series[picked->candidate], std::chrono::nanoseconds(100 + i));
    two.add(b.count.bucket->series[picked->candidate], std::chrono::nanoseconds(100000 - i));
  }
  CHECK(one.fingerprint() == two.fingerprint() && one.fingerprint() >= 0);
  CHECK(one.costs().size() == two.costs().size() && one.costs() != two.costs());
  two.next(call(Op::all_reduce, 8), 1);
  CHECK(one.fingerprint() != two.fingerprint());
}

TEST(fingerprints_differ_as_calls_do) {
  std::vector<int64_t> seen;
  const auto add = [&](const std::vector<std::pair<Call, int64_t>>& calls, int64_t period = 2, bool picks = false) {
    Refinement refinement(period, 2);
    const std::vector<Refinement::Option> others = {{1, true, unit(5)}};
    for (const auto& [made, bytes] : calls) {
      const auto turn = refinement.next(made, bytes);
      if (picks) refinement.pick(*turn.count.bucket, {0, true, unit(5)}, others);
    }
    seen.push_back(refinement.fingerprint());
  };
  const auto usual = call(Op::all_reduce, 8);
  auto largest = usual;
  largest.red = RedOp::MAX;
  add({});
  add({{usual, 1024}});
  add({{usual, 1024}}, 3);
  add({{usual, 1024}}, 2, true);
  add({{usual, 1024}, {usual, 1024}});
  add({{usual, 1100}});  // the same bucket
  add({{call(Op::all_reduce, 8, DType::Double), 1024}});
  add({{largest, 1024}});
  add({{call(Op::reduce_scatter, 8), 1024}});
  add({{usual, 64}, {usual, 1024}});
  add({{usual, 1024}, {usual, 64}});
  std::ranges::sort(seen);
  CHECK(std::ranges::adjacent_find(seen) == seen.end() && seen.front() >= 0 && seen.back() <= int64_t{1} << 62);
}

// Which candidates can do a call may depend on its type.
TEST(a_trial_that_is_not_sent_leaves_the_order_of_the_others) {
  Refinement one(2, 4), two(2, 4);
  const auto trial = [](Refinement& refinement, const std::vector<std::size_t>& candidates, bool fails = false) {
    std::vector<Refinement::Option> others;
    for (const auto candidate : candidates) others.push_back({candidate, true, unit(5)});
    while (true) {
      auto turn = refinement.next(call(Op::all_reduce, 8), 32);
      if (turn.part != Part::Trial) continue;
      const auto candidate = refinement.pick(*turn.count.bucket, {0, true, unit(5)}, others)->candidate;
      turn.count.tried = &turn.count.bucket->series[candidate];
      if (fails) refinement.withdraw(turn.count);
      return candidate;
    }
  };
  for (auto* const each : {&one, &two}) {
    for (const std::size_t candidate : {1, 2, 2}) CHECK(trial(*each, {candidate}) == candidate);
    if (each == &one) trial(*each, {2}, true);
    CHECK(trial(*each, {3}) == 3);
    CHECK(trial(*each, {1, 2}) == 1);
  }
  CHECK(one.fingerprint() == two.fingerprint());
}

TEST(a_call_that_is_not_sent_does_not_count) {
  Refinement one(3, 3), two(3, 3);
  const Refinement::Option mine{0, true, unit(5)};
  const std::vector<Refinement::Option> others = {{1, true, unit(6)}, {2, false, 0}};
  const auto turn_of = [&](Refinement& refinement, Op op = Op::all_reduce, int64_t bytes = 32) {
    const auto turn = refinement.next(call(op, 8), bytes);
    const auto* picked = turn.part == Part::Trial ? refinement.pick(*turn.count.bucket, mine, others) : nullptr;
    auto count = turn.count;
    if (picked != nullptr) count.tried = &count.bucket->series[picked->candidate];
    return std::tuple(turn.part, picked, count);
  };
  for (int i = 0; i < 100; ++i) {
    one.withdraw(std::get<2>(turn_of(one)));
    one.withdraw(std::get<2>(turn_of(one, Op::all_reduce, 33)));  // about this size
    one.withdraw(std::get<2>(turn_of(one, Op::broadcast)));       // the first of its kind
    const auto [part, picked, count] = turn_of(one);
    const auto [other_part, other_picked, other_count] = turn_of(two);
    CHECK(part == other_part && picked == other_picked && count.number == other_count.number);
    one.withdraw(std::get<2>(turn_of(one, Op::all_reduce, 33)));
    const auto first = one.next(call(Op::all_reduce, 8), 33), second = one.next(call(Op::all_reduce, 8), 34);
    for (const auto* each : {&second, &first}) one.withdraw(each->count);  // of two threads
    CHECK(one.fingerprint() == two.fingerprint());
    // Another thread's call has followed: it counts all the same.
    const auto earlier = one.next(call(Op::all_reduce, 8), 32).count;
    for (auto* const each : {&one, &two}) each->next(call(Op::all_reduce, 8), 32);
    two.next(call(Op::all_reduce, 8), 32);
    one.withdraw(earlier);
    CHECK(one.fingerprint() == two.fingerprint());
  }
  CHECK(one.costs().size() == two.costs().size());
}

TEST(a_call_that_fails_before_it_is_sent_leaves_the_turns_of_the_others) {
  auto made = call(Op::all_gather, 8 * kRanks);
  made.in.count = 8;
  for (const bool refines : {true, false}) {
    Trio trio, other;
    for (auto* const each : {&trio, &other}) {
      if (refines) {
        each->selector().refine(4);
      } else {
        each->selector().try_candidates("a group");
      }
    }
    for (int i = 0; i < (refines ? 100 : 10); ++i) {
      trio.fail(true);
      CHECK(check::has(ranks::failure([&] { trio.run(made, 1); }).text, "no memory"));
      trio.fail(false);
      CHECK(trio.run(made, 1) == other.run(made, 1));
    }
  }
}

TEST(blocking_calls_that_name_no_backend_take_part) {
  Trio trio(known());
  CHECK(trio.run(call(Op::all_reduce, 8), 100)["a"] == 100);  // off by default
  trio.selector().refine(kPeriod);
  const auto counts = trio.run(call(Op::all_reduce, 8), 1000);
  CHECK(counts.at("a") >= 900 && counts.at("b") >= 40 && counts.at("c") >= 20);
  CHECK(trio.run(call(Op::all_reduce, 8), 100, trio.group().find("a"))["a"] == 100);
  trio.selector().refine(0);
  CHECK(trio.run(call(Op::all_reduce, 8), 100)["a"] == 100);
}

TEST(excluded_candidates_are_never_tried) {
  auto tuning = known();
  tuning.costs.pop_back();  // a table has no curve of c then
  tuning.excluded = {{Op::all_reduce, false, false, DeviceType::CPU, "c"}};
  Trio trio(tuning);
  trio.selector().refine(2);
  auto counts = trio.run(call(Op::all_reduce, 8), 100);
  CHECK(counts["b"] > 0 && counts["c"] == 0);
  trio.selector().refine(0);
  trio.selector().try_candidates("a group");
  counts = trio.run(call(Op::all_reduce, 8, DType::Long), 6);
  CHECK(counts["a"] == 3 && counts["b"] == 3 && counts["c"] == 0);
}

TEST(results_of_trials_are_explained_where_they_are_used) {
  auto tuning = known();
  const auto largest = int64_t{1} << 18;  // elements of the largest size measured
  auto larger = call(Op::all_reduce, 2 * largest);
  larger.size_hint = 2 * largest * 4;
  tuning.tried = {{larger, "b", unit(9)}, {larger, "c", unit(8)}};
  Trio trio(tuning);
  trio.selector().try_candidates("a group");
  for (const auto& [count, chosen, tried] : {std::tuple{2 * largest, "a", false}, {2 * largest + 1, "c", true}}) {
    const auto asked = call(Op::all_reduce, count);
    const auto explained = trio.selector().explain(asked);
    CHECK(explained.chosen->name == chosen && explained.tried == tried);
    Timing timing(true);
    CHECK(trio.selector().choose(asked, count * 4, timing) == explained.chosen);
    const auto behind_passes = trio.selector().explain(asked, false);
    Timing other(false);
    CHECK(!behind_passes.tried && trio.selector().choose(asked, count * 4, other) == behind_passes.chosen);
  }
  // A table covers others than its own sizes only where it was made on machines like these, and as long as it is used.
  auto like = tuning;
  like.exact = false;
  for (const auto& [used, covered] : {std::pair{&tuning, true}, {&like, false}, {&tuning, true}}) {
    trio.group().tune(*used);
    CHECK(trio.selector().explain(call(Op::all_reduce, 8)).trying != covered);
  }
  trio.group().tune({});
  CHECK(trio.selector().explain(call(Op::all_reduce, 8)).trying);
  // The largest size of a table covers all others.
  tuning.costs.front().curve.put({int64_t{1} << 62, unit(20)});
  trio.group().tune(tuning);
  CHECK(!trio.selector().explain(call(Op::all_reduce, 2 * largest + 1)).tried);
}

TEST(forced_unsized_asynchronous_and_point_to_point_calls_never_do) {
  auto tuning = known();
  tuning.rules = {{Op::broadcast, false, 0, Tuning::Rule::kNoEnd, "c"}};
  Trio trio(tuning);
  trio.selector().refine(2);
  CHECK(trio.run(call(Op::broadcast, 8), 100)["c"] == 100);
  auto vectored = call(Op::all_to_all, 4);
  const std::vector<int64_t> counts = {1, 1, 1, 1}, places = {0, 1, 2, 3};
  vectored.vectored = true;
  vectored.in_counts = vectored.out_counts = counts;
  vectored.in_displs = vectored.out_displs = places;
  std::vector<float> in(4), out(4);
  vectored.in = ranks::buffer(in);
  vectored.out = ranks::buffer(out);
  trio.clear();
  for (int i = 0; i < 100; ++i) ranks::run(trio.group(), vectored);
  CHECK(trio.calls()["a"] == 100);
  trio.clear();
  auto reduced = call(Op::all_reduce, 4);
  reduced.out = ranks::buffer(out);
  for (int i = 0; i < 100; ++i) ranks::start(trio.group(), reduced);
  CHECK(trio.calls()["a"] == 100);
  auto any = reduced;
  any.any_form = true;
  trio.group().set_any_form(true);
  trio.clear();
  for (int i = 0; i < 100; ++i) ranks::start(trio.group(), any), ranks::run(trio.group(), any);
  CHECK(trio.calls()["a"] == 200);
  trio.group().set_any_form(false);
  auto message = call(Op::send, 4);
  message.out = ranks::buffer(out);
  message.root = 1;
  trio.clear();
  for (int i = 0; i < 100; ++i) ranks::run(trio.group(), message);
  CHECK(trio.calls()["a"] == 100);
  for (auto* const untimed : {&reduced, &message}) {  // on a device, and too large
    untimed->op = Op::all_reduce;
    if (untimed == &reduced) untimed->device = {DeviceType::CUDA, 0};
    for (int i = 0; i < 4; ++i) {
      Timing timing(true);
      trio.selector().choose(*untimed, untimed == &reduced ? 16 : int64_t{1} << 31, timing);
    }
  }
  CHECK(trio.selector().refinement()->buckets().empty());
}

TEST(the_thread_of_a_call_does_not_decide_whether_it_does) {
  for (const bool of_another_thread : {false, true}) {
    Trio trio(known());
    trio.selector().refine(2);
    auto made = call(Op::all_reduce, 4);
    made.any_form = of_another_thread;
    CHECK(trio.run(made, 100)["a"] < 100);
  }
}

TEST(agreed_costs_change_the_choice_and_change_it_back) {
  Trio trio(known());
  trio.selector().refine(kPeriod);
  const auto asked = call(Op::all_reduce, 256);
  trio.run(asked, 1);
  const auto adopt = [&](int64_t a, int64_t b, int64_t c) { return trio.selector().adopt(std::vector{a, b, c}); };
  CHECK(adopt(unit(9), kNone, kNone).empty() && trio.choose(asked) == "a");  // no other candidate to compare with
  CHECK(!trio.selector().explain(asked).candidates[0].refined);
  const auto changes = adopt(unit(6), unit(5), kNone);
  CHECK(changes.size() == 1 && changes[0].from == "a" && changes[0].to == "b" && changes[0].bytes == 1024);
  CHECK(trio.choose(asked) == "b");
  CHECK(trio.choose(call(Op::all_reduce, 1 << 18)) == "a");  // as the table says
  const auto explained = trio.selector().explain(asked);
  CHECK(explained.candidates[0].refined && explained.candidates[1].refined && !explained.candidates[2].refined);
  // c was not measured: it moved as a did, from 4 to 8; later as b does, from 8 to 6.
  CHECK(explained.candidates[2].cost == unit(8));
  CHECK(adopt(unit(2), unit(3), kNone).size() == 1 && trio.choose(asked) == "a");
  CHECK(trio.selector().explain(asked).candidates[2].cost == unit(6));
  CHECK(adopt(unit(2), unit(3), kNone).empty());
  adopt(unit(2), unit(3), unit(5));
  adopt(unit(2), unit(3), kNone);
  CHECK(trio.selector().explain(asked).candidates[2].refined);  // since then
}

TEST(a_class_without_curves_gets_its_own) {
  Trio trio(known());
  trio.selector().refine(kPeriod);
  const auto asked = call(Op::all_reduce, 128, DType::Long);  // goes by the curves of floats
  trio.run(asked, 1);
  trio.selector().adopt(std::vector{unit(6), unit(5), kNone});
  CHECK(trio.choose(asked) == "b" && trio.choose(call(Op::all_reduce, 256)) == "a");
  CHECK(trio.choose(call(Op::all_reduce, 1 << 17, DType::Long)) == "a");
  Trio bare;
  bare.selector().refine(kPeriod);
  bare.run(asked, 1);
  CHECK(bare.selector().adopt(std::vector{unit(6), kNone, unit(5)}).size() == 1);
  CHECK(bare.choose(asked) == "c");
}

TEST(times_that_were_used_are_forgotten_the_others_kept) {
  Trio trio(known());
  trio.selector().refine(kPeriod);
  trio.run(call(Op::all_reduce, 256), 2000);
  auto costs = trio.selector().refinement()->costs();
  CHECK(costs.size() == 3 && std::count(costs.begin(), costs.end(), kNone) == 0);
  costs[2] = kNone;  // another rank has not enough
  trio.selector().adopt(costs);
  const auto left = trio.selector().refinement()->costs();
  CHECK(left[0] == kNone && left[1] == kNone && left[2] != kNone);
}

TEST(new_candidates_start_it_anew) {
  Trio trio(known());
  trio.selector().refine(kPeriod);
  trio.run(call(Op::all_reduce, 8), 25);
  trio.group().disconnect("b");
  CHECK(trio.selector().refinement()->period() == kPeriod && trio.selector().refinement()->buckets().empty());
  const auto counts = trio.run(call(Op::all_reduce, 8), 200);
  CHECK(counts.at("a") >= 180 && counts.at("c") >= 4 && counts.at("b") == 0);
}
