// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <random>
#include <thread>

#include "check.h"
#include "passes/schedule/scheduler.h"
#include "ranks.h"

namespace {

using namespace mcr;
using namespace std::chrono_literals;

using Order = std::vector<PlanPlace>;
using Issued = std::vector<std::pair<int, int>>;  // call, motif

// Calls of Issues that complete at once, or when told, with a record of the order in which they are issued.
struct Calls {
  class Told final : public Request {
   public:
    explicit Told(const bool& complete) : complete_(complete) {}
    bool poll() override { return complete_; }

   private:
    const bool& complete_;
  };

  std::shared_ptr<Enforcer> enforcer = std::make_shared<Enforcer>();
  uint32_t lane = enforcer->new_lane(), other = enforcer->new_lane();
  uint64_t order = 0;
  Issued issued;
  bool complete = true;
  const std::string* lost = nullptr;

  uint64_t set_order(Order places, uint32_t number) { return order = enforcer->set_order(std::move(places), number); }
  // `serial`: each motif waits for the one before it.
  std::shared_ptr<Run> make(int call, int64_t iteration, int motifs = 1, bool serial = false, uint32_t on = 0) {
    const auto schedule = Schedule::make();
    Schedule::Ids before;
    for (int motif = 0; motif < motifs; ++motif) {
      Call one;
      one.op = Op::barrier;
      const auto id = schedule->issue(one, schedule->late_after(before), static_cast<uint8_t>(motif));
      if (serial) before = {id};
    }
    const auto run = std::make_shared<Run>(schedule, [this, call](const Task& task, Requests& requests) {
      issued.emplace_back(call, task.part);
      requests.push_back(std::make_unique<Told>(complete));
    });
    run->begin(nullptr);
    std::vector<uint32_t> lanes(static_cast<std::size_t>(motifs), on);
    enforcer->submit(
        {run, static_cast<uint32_t>(call), iteration, order, std::move(lanes), nullptr, [this] { return lost; }});
    return run;
  }
};

}  // namespace

TEST(without_an_order_calls_are_issued_as_they_are_made) {
  Calls calls;
  calls.make(3, 0, 2);
  calls.make(1, 0);
  CHECK((calls.issued == Issued{{3, 0}, {3, 1}, {1, 0}}) && !calls.enforcer->pending());
}

TEST(the_order_waits_for_the_call_that_comes_next) {
  Calls calls;
  calls.set_order(Order{{1, 0, 0}, {0, 0, 0}, {1, 1, 0}}, 2);
  calls.make(0, 0, 1, false, calls.other);
  CHECK(calls.issued.empty() && calls.enforcer->pending());
  calls.make(1, 0, 2);
  CHECK((calls.issued == Issued{{1, 0}, {0, 0}, {1, 1}}));
  calls.make(0, 1, 1, false, calls.other);
  CHECK(calls.issued.size() == 3);
  calls.make(1, 1, 2);
  CHECK((calls.issued == Issued{{1, 0}, {0, 0}, {1, 1}, {1, 0}, {0, 0}, {1, 1}}));
  CHECK(calls.enforcer->statistics().issued == 6 && calls.enforcer->statistics().breaks == 0);
}

TEST(ranks_that_keep_an_order_have_equal_digests) {
  Calls one, other;
  for (auto* each : {&one, &other}) each->set_order(Order{{1, 0, 0}, {0, 0, 0}}, 2);
  for (int64_t iteration = 0; iteration < 3; ++iteration) {
    one.make(0, iteration), one.make(1, iteration, 1, false, one.other);
    other.make(1, iteration, 1, false, other.other), other.make(0, iteration);
  }
  const auto found = one.enforcer->digests(), others = other.enforcer->digests();
  CHECK(found.size() == 3 && found == others);
  for (int64_t round = 0; round < 3; ++round) CHECK(found.at(round) != 0);
  CHECK(found.at(0) != found.at(1));
  other.make(0, 3);
  CHECK(other.enforcer->synchronize(10s) && other.enforcer->statistics().breaks == 1);
  CHECK(other.enforcer->digests().empty());
}

TEST(a_motif_of_the_next_iteration_may_come_first) {
  Calls calls;
  // In the round of iteration i: call 1 of iteration i, then call 0 of iteration i + 1.
  calls.set_order(Order{{1, 0, 0}, {0, 0, 1}}, 2);
  calls.make(0, 0);
  CHECK((calls.issued == Issued{{0, 0}}));
  calls.make(0, 1);  // made before call 1 of iteration 0
  CHECK(calls.issued.size() == 1);
  calls.make(1, 0, 1, false, calls.other);
  CHECK((calls.issued == Issued{{0, 0}, {1, 0}, {0, 0}}));
}

TEST(a_motif_waits_for_those_before_it_and_the_order_with_it) {
  Calls calls;
  calls.complete = false;
  calls.set_order(Order{{0, 0, 0}, {0, 1, 0}, {1, 0, 0}}, 2);
  const auto first = calls.make(0, 0, 2, true);
  const auto second = calls.make(1, 0, 1, false, calls.other);
  calls.enforcer->drive();
  CHECK((calls.issued == Issued{{0, 0}}));
  CHECK(calls.enforcer->first() == "motif 1 of barrier 0" &&
        calls.enforcer->behind(*second) == calls.enforcer->first());
  CHECK(calls.enforcer->behind(*first).empty());
  const auto request = request_of(calls.enforcer, second);
  CHECK(request->behind() == "motif 1 of barrier 0");
  calls.complete = true;
  calls.enforcer->drive();
  CHECK(calls.enforcer->first().empty() && request->behind().empty());
  CHECK((calls.issued == Issued{{0, 0}, {0, 1}, {1, 0}}));
}

namespace {

// A thread waits for a call behind one that has not been made, or for a message.
void expect_a_break(bool message) {
  Calls calls;
  calls.set_order(Order{{1, 0, 0}, {0, 0, 0}}, 2);
  const auto run = calls.make(0, 0, 1, false, calls.other);
  calls.enforcer->drive();
  CHECK(calls.issued.empty());
  message ? calls.enforcer->expedite() : run->expedite();
  const auto deadline = std::chrono::steady_clock::now() + 900ms;  // before the order breaks without a thread
  do {
    calls.enforcer->drive();
  } while (calls.issued.empty() && std::chrono::steady_clock::now() < deadline);
  CHECK((calls.issued == Issued{{0, 0}}) && calls.enforcer->statistics().breaks == 1);
  calls.make(1, 0);  // the order goes on
  calls.make(0, 1, 1, false, calls.other);
  CHECK(calls.issued.size() == 2);
  calls.make(1, 1);
  CHECK((calls.issued == Issued{{0, 0}, {1, 0}, {1, 0}, {0, 0}}));
}

}  // namespace

TEST(a_thread_that_waits_for_a_call_behind_one_that_is_not_made_breaks_the_order) { expect_a_break(false); }

TEST(a_thread_that_waits_for_a_message_breaks_the_order_too) { expect_a_break(true); }

TEST(a_call_that_is_only_polled_completes_too) {
  Calls calls;
  calls.set_order(Order{{1, 0, 0}, {0, 0, 0}}, 2);
  calls.make(0, 0, 1, false, calls.other);
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (calls.issued.empty() && std::chrono::steady_clock::now() < deadline) calls.enforcer->drive();
  CHECK((calls.issued == Issued{{0, 0}}) && !calls.enforcer->pending());
}

TEST(calls_that_are_left_out_do_not_hold_the_others) {
  Calls calls;
  calls.set_order(Order{{1, 0, 0}, {0, 0, 0}}, 2);
  calls.make(0, 0);
  calls.enforcer->leave_out({1});
  calls.enforcer->drive();
  CHECK((calls.issued == Issued{{0, 0}}));
  calls.make(0, 1);
  CHECK(calls.issued.size() == 2);
}

TEST(a_new_order_begins_after_the_calls_of_the_old_one) {
  Calls calls;
  calls.set_order(Order{{1, 0, 0}, {0, 0, 0}}, 2);
  calls.make(0, 0, 1, false, calls.other);
  calls.set_order(Order{{0, 0, 0}, {1, 0, 0}}, 2);
  calls.enforcer->drive();
  CHECK((calls.issued == Issued{{0, 0}}));
  calls.make(1, 0);
  CHECK(calls.issued.size() == 1);
  calls.make(0, 0, 1, false, calls.other);
  CHECK((calls.issued == Issued{{0, 0}, {0, 0}, {1, 0}}));
}

TEST(a_lane_keeps_the_order_of_calls_when_the_order_breaks) {
  Calls calls;
  calls.complete = false;
  calls.set_order(Order{{2, 0, 0}, {0, 0, 0}, {0, 1, 0}, {1, 0, 0}}, 3);
  calls.make(0, 0, 2, true);
  calls.make(1, 0);
  calls.enforcer->synchronize(0s);
  // Call 1 is on the lane of call 0's second motif, which waits for the first.
  CHECK((calls.issued == Issued{{0, 0}}));
  calls.complete = true;
  CHECK(calls.enforcer->synchronize(10s));
  CHECK((calls.issued == Issued{{0, 0}, {0, 1}, {1, 0}}));
}

TEST(a_rank_that_has_left_the_order_issues_later_calls_that_others_issue_first) {
  Calls calls;
  calls.complete = false;
  calls.set_order(Order{{1, 0, 0}, {1, 1, 0}, {0, 0, 0}, {0, 1, 0}}, 2);
  calls.make(0, 0, 2, true);
  calls.enforcer->synchronize(0s);
  CHECK((calls.issued == Issued{{0, 0}}));
  // Ranks that keep the order issue the second motif of call 0 after call 1, so its first one may wait for this.
  calls.make(1, 0, 2, true, calls.other);
  CHECK((calls.issued == Issued{{0, 0}, {1, 0}}) && calls.enforcer->statistics().breaks == 1);
}

TEST(the_order_breaks_at_a_motif_that_waits_for_long) {
  Calls calls;
  calls.complete = false;
  calls.set_order(Order{{1, 0, 0}, {1, 1, 0}, {0, 0, 0}}, 2);
  calls.make(0, 0);
  calls.make(1, 0, 2, true, calls.other);
  CHECK((calls.issued == Issued{{1, 0}}));
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (calls.issued.size() < 2 && std::chrono::steady_clock::now() < deadline) calls.enforcer->drive();
  CHECK((calls.issued == Issued{{1, 0}, {0, 0}}) && calls.enforcer->statistics().breaks == 1);
}

TEST(calls_of_a_new_order_wait_for_those_of_the_old_one_on_their_lanes) {
  Calls calls;
  calls.complete = false;
  calls.set_order(Order{{0, 0, 0}, {0, 1, 0}, {1, 0, 0}}, 2);
  calls.make(0, 0, 2, true);
  calls.set_order(Order{{0, 0, 0}, {1, 0, 0}}, 2);
  calls.make(0, 0, 1, false, calls.other);
  CHECK((calls.issued == Issued{{0, 0}, {0, 0}}));
  calls.make(1, 0);  // on the lane of the old call's second motif
  CHECK(calls.issued.size() == 2);
  calls.complete = true;
  calls.enforcer->drive();
  CHECK((calls.issued == Issued{{0, 0}, {0, 0}, {0, 1}, {1, 0}}));
}

TEST(the_order_ends_if_a_call_is_not_made_any_more) {
  Calls calls;
  calls.set_order(Order{{1, 0, 0}, {0, 0, 0}}, 2);
  int64_t iteration = 0;
  for (; iteration < 8; ++iteration) {
    calls.make(0, iteration);
    CHECK(calls.issued.size() == static_cast<std::size_t>(iteration) && calls.enforcer->synchronize(10s));
  }
  calls.make(0, iteration);
  CHECK(calls.issued.size() == 9 && calls.enforcer->statistics().breaks == 8);
}

TEST(a_thread_that_waits_for_all_calls_keeps_the_order_if_it_can) {
  Calls calls;
  calls.complete = false;
  calls.set_order(Order{{0, 0, 0}, {0, 1, 0}, {1, 0, 0}}, 2);
  calls.make(0, 0, 2, true);
  calls.make(1, 0, 1, false, calls.other);
  CHECK(!calls.enforcer->synchronize(0s));
  CHECK((calls.issued == Issued{{0, 0}}));
  calls.complete = true;
  CHECK(calls.enforcer->synchronize(10s));
  CHECK((calls.issued == Issued{{0, 0}, {0, 1}, {1, 0}}) && calls.enforcer->statistics().breaks == 0);
}

TEST(calls_of_a_group_that_lost_a_rank_end_and_the_others_leave_the_order) {
  const std::string text = "rank 2 has ended";
  Calls lost, others;
  others.enforcer = lost.enforcer;
  lost.complete = false;
  others.order = lost.set_order(Order{{0, 0, 0}, {0, 1, 0}, {1, 0, 0}}, 2);
  const auto run = lost.make(0, 0, 2, true);
  others.make(1, 0, 1, false, others.other);
  lost.enforcer->drive();
  CHECK(others.issued.empty() && !run->issued());
  lost.lost = &text;
  lost.enforcer->drive();
  CHECK((others.issued == Issued{{1, 0}}) && run->issued() && !lost.enforcer->pending());
  const auto error = ranks::failure([&] { run->poll(); });
  CHECK(error.code == ErrorCode::PeerLost && error.text == text);
  CHECK(!run->finished());  // its first motif is still running
  others.make(1, 1, 1, false, others.other);
  CHECK(others.issued.size() == 2);
}

TEST(iterations_begin_where_their_signatures_are_least) {
  IterationFinder finder;
  for (uint64_t start = 0; start < 100; ++start) CHECK(finder.add(1000 + start, 1) == 0);
  std::size_t found = 0, calls = 0;
  for (; found == 0 && calls < 1000; ++calls) found = finder.add((calls + 3) % 7, 1);
  CHECK(found == 7 && calls > 6 * 7 && (calls - 1 + 3) % 7 == 0);
}

TEST(equal_calls_within_an_iteration_are_not_iterations) {
  IterationFinder finder;
  std::size_t found = 0;
  for (uint64_t call = 0; found == 0 && call < 1000; ++call) found = finder.add(call % 12 == 0 ? 1 : 2, 1);
  CHECK(found == 12);
}

TEST(calls_of_other_groups_are_other_calls) {
  IterationFinder finder;
  std::size_t found = 0;
  for (uint64_t call = 0; found == 0 && call < 1000; ++call) found = finder.add(1, call % 5);
  CHECK(found == 5);
}

TEST(iterations_that_a_program_marks_begin_there) {
  IterationFinder finder;
  std::size_t found = 0, calls = 0;
  for (; found == 0 && calls < 1000; ++calls) {  // equal calls, four in an iteration
    if (calls % 4 == 3) finder.mark();
    found = finder.add(1, 1);
  }
  CHECK(found == 4 && (calls - 1) % 4 == 3 && calls > 6 * 4);
}

TEST(a_program_without_iterations_has_none) {
  IterationFinder finder;
  std::minstd_rand random;
  bool found = false;
  for (int call = 0; call < 10000; ++call) found = found || finder.add(random() % 3, 1) != 0;
  CHECK(!found);
}

TEST(iterations_are_found_after_a_long_time_without_any) {
  IterationFinder finder;
  std::minstd_rand random;
  std::size_t found = 0;
  for (std::size_t call = 0; found == 0 && call <= IterationFinder::kPatience; ++call) found = finder.add(random(), 1);
  CHECK(found == 0);
  for (std::size_t call = 0; found == 0 && call < 2 * IterationFinder::kRest; ++call) found = finder.add(call % 700, 1);
  CHECK(found == 700);
}

TEST(marks_are_read_at_any_time) {
  IterationFinder finder;
  std::minstd_rand random;
  std::size_t found = 0;
  for (std::size_t call = 0; found == 0 && call < 2 * IterationFinder::kPatience; ++call)
    found = finder.add(random(), 1);
  CHECK(found == 0);
  for (std::size_t call = 0; found == 0 && call < 100; ++call) {
    if (call % 3 == 0) finder.mark();
    found = finder.add(call % 3, 1);
  }
  CHECK(found == 3);
}

TEST(a_program_that_marks_its_iterations_needs_no_memory_of_their_calls) {
  IterationFinder finder;
  std::minstd_rand random;
  for (std::size_t call = 0; call < 100; ++call) finder.add(random(), 1);
  CHECK(finder.remembered() == 100);
  for (std::size_t call = 0; call < 2 * IterationFinder::kPatience; ++call) {
    if (call % 10 == 0) finder.mark();
    finder.add(random(), 1);
  }
  CHECK(finder.remembered() == 0);
}

TEST(iterations_are_found_after_as_many_repetitions_as_are_demanded) {
  IterationFinder finder;
  const auto calls_until_found = [&](std::size_t period) {
    finder.reset();
    std::size_t calls = 0;
    for (std::size_t found = 0; found == 0 && calls < 1000; ++calls) found = finder.add(calls % period, 1);
    return calls;
  };
  CHECK(calls_until_found(5) == 8 * 5 + 1);  // 33 calls must have repeated themselves
  CHECK(calls_until_found(8) == 6 * 8 + 1);
  finder.demand(5, 20);
  CHECK(calls_until_found(8) == 6 * 8 + 1);
  CHECK(calls_until_found(5) == 20 * 5 + 1);  // nor are ten calls an iteration
}

TEST(equal_calls_that_were_no_iterations_do_not_hide_the_iteration_around_them) {
  IterationFinder finder;
  const auto next = [](std::size_t call) { return uint64_t{call % 41 == 40 ? 2U : 1U}; };
  std::size_t found = 0, call = 0;
  for (; found == 0; ++call) found = finder.add(next(call), 1);
  CHECK(found == 1);
  finder.reset();
  finder.demand(1, 64);
  for (found = 0; found == 0 && call < 1000; ++call) found = finder.add(next(call), 1);
  CHECK(found == 41);
}

namespace {

// A program of three calls in an iteration, on one group: two all_reduces, started, and an all_gather that waits.
class Program {
 public:
  // `forms` of the three calls; they are issued in program order.
  Program(Group& group, const std::shared_ptr<Group>& lane, const std::vector<PlannedForm>& forms)
      : group_(group), forms_(forms) {
    control_ = std::make_shared<PlanControl>([this](auto event, int64_t value) { handle(event, value); });
    group.set_passes({std::make_shared<Scheduler>(control_, group, std::vector{lane}, true)});
  }
  ~Program() { group_.set_passes({}); }

  // True if all values are right.
  bool iterate() {
    const auto size = static_cast<std::size_t>(group_.size());
    std::vector<float> one(10 * size, 1.0F), two(7, 2.0F), own(3, static_cast<float>(group_.rank())), all(3 * size);
    Call first = call(Op::all_reduce, {}, ranks::buffer(one)), second = call(Op::all_reduce, {}, ranks::buffer(two));
    made_ = 0;
    std::vector<std::shared_ptr<Work>> works;
    works.push_back(ranks::start(group_, first));
    made_ = 1;
    works.push_back(ranks::start(group_, second));
    made_ = 2;
    ranks::run(group_, call(Op::all_gather, ranks::buffer(own), ranks::buffer(all)));
    for (const auto& work : works) {
      if (!work->wait_for(20s)) return false;
      work->rethrow();
    }
    const auto n = static_cast<float>(group_.size());
    bool right = std::ranges::all_of(one, [&](float value) { return value == n; });
    right = right && std::ranges::all_of(two, [&](float value) { return value == 2 * n; });
    for (std::size_t i = 0; i < all.size(); ++i) right = right && all[i] == static_cast<float>(i / 3);
    return right;
  }
  // A call outside of the iterations.
  void barrier() { ranks::run(group_, call(Op::barrier, {}, {})); }

  std::vector<PlanControl::Event> events;
  PlanControl& control() { return *control_; }

 private:
  static Call call(Op op, Buffer in, Buffer out) {
    Call made;
    made.op = op;
    made.dtype = DType::Float;
    made.in = in;
    made.out = out;
    return made;
  }

  void handle(PlanControl::Event event, int64_t value) {
    if (event != PlanControl::Event::Iteration) events.push_back(event);
    if (event == PlanControl::Event::Left) control_->watch();
    if (event != PlanControl::Event::Found) return;
    const auto calls = forms_.size();
    const auto seen = control_->newest(calls + 1);
    std::vector<PlannedForm> forms;
    Order order;
    for (std::size_t i = 0; i < calls; ++i) {
      auto form = forms_[(made_ + i) % calls];
      form.signature = seen.at(i).signature;
      form.call = static_cast<uint32_t>(i);
      const auto motifs = static_cast<uint32_t>(motif_count_of(form.form));
      form.channels.assign(motifs, group_.candidates().front().name);
      form.lanes.assign(motifs, 0);
      for (uint32_t motif = 0; motif < motifs; ++motif) order.push_back({form.call, motif, 0});
      forms.push_back(std::move(form));
    }
    CHECK(std::cmp_equal(value, calls));
    control_->set_plan({{group_.spec().name, forms}}, order, static_cast<uint32_t>(calls));
  }
  static int motif_count_of(const MotifForm& form) {
    return form.kind == MotifForm::Kind::Segment ? form.parts : form.kind == MotifForm::Kind::Ring ? 2 : 1;
  }

  Group& group_;
  const std::vector<PlannedForm> forms_;
  std::size_t made_ = 0;  // calls of this iteration
  std::shared_ptr<PlanControl> control_;
};

PlannedForm form(std::string_view text) {
  PlannedForm made;
  made.form = MotifForm::parse(text);
  return made;
}

}  // namespace

TEST(a_program_follows_a_plan_until_it_makes_another_call) {
  for (const int size : {1, 2, 3, 4}) {
    ranks::together(size, [size](Group& group, const std::shared_ptr<Group>& lane) {
      const std::vector<PlannedForm> forms = {form(size > 1 ? "ring" : "segment 2"), form("segment 2"), form("whole")};
      Program program(group, lane, forms);
      bool right = true;
      for (int iteration = 0; iteration < 40; ++iteration) right = right && program.iterate();
      CHECK(right);
      CHECK((program.events == std::vector{PlanControl::Event::Found}));
      const auto planned = program.control().enforcer()->statistics();
      CHECK(planned.calls >= 3 * 20 && planned.issued > planned.calls * 3 / 2 && planned.breaks == 0);
      for (const auto& seen : program.control().newest(20)) CHECK(!seen.fixed && seen.named.empty());
      program.barrier();
      CHECK((program.events == std::vector{PlanControl::Event::Found, PlanControl::Event::Left}));
      CHECK(program.control().newest(1).at(0).fixed);
      for (int iteration = 0; iteration < 40; ++iteration) right = right && program.iterate();
      CHECK(right && program.events.size() == 3 && program.events.back() == PlanControl::Event::Found);
    });
  }
}
