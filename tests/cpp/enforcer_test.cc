// SPDX-License-Identifier: Apache-2.0
// The end of calls in the order of a plan, and calls that get no place in it.
#include "passes/schedule/enforcer.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "passes/schedule/scheduler.h"
#include "ranks.h"

namespace {

using namespace mcr;

// Uses the enforcer when the last reference to its call ends, as an object of a program may. The first one that ends
// calls `ended`.
class Asks {
 public:
  Asks(const Enforcer& enforcer, int& asked, std::function<void()>& ended)
      : enforcer_(enforcer), asked_(asked), ended_(ended) {}
  Asks(const Asks&) = delete;
  Asks& operator=(const Asks&) = delete;
  ~Asks() {
    static_cast<void>(enforcer_.statistics());
    ++asked_;
    if (const auto ended = std::exchange(ended_, nullptr)) ended();
  }

 private:
  const Enforcer& enforcer_;
  int& asked_;
  std::function<void()>& ended_;
};

// Calls of which nothing but the enforcer has a reference.
struct Calls {
  std::shared_ptr<Enforcer> enforcer = std::make_shared<Enforcer>();
  uint64_t order = 0;
  int asked = 0;
  const std::string* lost = nullptr;
  std::function<void()> ended;

  void set_order(std::vector<PlanPlace> places, uint32_t number) {
    order = enforcer->set_order(std::move(places), number);
  }
  void make(uint32_t call, int64_t iteration = 0) {
    auto schedule = Schedule::make();
    Call one;
    one.op = Op::barrier;
    schedule->issue(one, schedule->late_after({}));
    schedule->own(std::make_shared<Asks>(*enforcer, asked, ended));
    auto run = std::make_shared<Run>(std::move(schedule), [](const Task&, Requests&) {});
    run->begin(nullptr);
    enforcer->submit(
        {std::move(run), call, iteration, order, {enforcer->new_lane()}, nullptr, [this] { return lost; }});
  }
};

}  // namespace

TEST(a_call_that_was_issued_is_released_without_the_lock) {
  Calls calls;
  calls.make(0);
  CHECK(calls.asked == 1);
  calls.set_order({{1, 0, 0}, {0, 0, 0}}, 2);
  calls.make(0);
  CHECK(calls.asked == 1);
  calls.make(1);
  CHECK(calls.asked == 3);
}

TEST(a_call_of_a_lost_group_is_released_without_the_lock) {
  const std::string lost = "gone";
  Calls calls;
  calls.set_order({{1, 0, 0}, {0, 0, 0}}, 2);
  calls.make(0);
  calls.lost = &lost;
  calls.enforcer->drive();
  CHECK(calls.asked == 1 && !calls.enforcer->pending());
}

TEST(an_object_that_ends_with_a_call_may_make_another) {
  Calls calls;
  calls.ended = [&] {
    calls.make(1);
    CHECK(calls.asked == 2 && !calls.enforcer->pending());
  };
  calls.make(0);
  CHECK(calls.asked == 2);
}

TEST(a_call_of_an_earlier_order_takes_no_place_in_a_new_one) {
  Calls calls;
  calls.set_order({{0, 0, 0}, {1, 0, 0}}, 2);
  const auto before = calls.order;
  calls.set_order({{1, 0, 0}, {0, 0, 0}}, 2);
  const auto now = std::exchange(calls.order, before);
  calls.make(0, 57);  // another thread has taken its turn before the new order, and submits it now
  CHECK(calls.asked == 1 && !calls.enforcer->pending());
  calls.order = now;
  calls.make(0);
  CHECK(calls.asked == 1);
  calls.order = before;
  calls.make(1, 57);
  CHECK(calls.asked == 2);
  calls.order = now;
  calls.make(1);
  CHECK(calls.asked == 4 && calls.enforcer->digests().size() == 1 && calls.enforcer->statistics().breaks == 0);
}

TEST(a_turn_has_the_number_of_its_order) {
  PlanControl control([](PlanControl::Event, int64_t) {});
  std::vector<uint64_t> orders;
  for (int plan = 0; plan < 3; ++plan) {
    control.set_plan({{"a group", std::vector<PlannedForm>(1)}}, {{0, 0, 0}}, 1);
    orders.push_back(control.enter("a group", {}).order);
  }
  CHECK(orders == (std::vector{orders[0], orders[0] + 1, orders[0] + 2}));
  CHECK(control.enforcer()->set_order({}, 0) == orders[0] + 3);
}

TEST(a_call_that_is_not_sent_gives_its_turn_back) {
  for (const bool marks : {false, true}) {
    int64_t begun = 0;
    PlanControl control([&](PlanControl::Event event, int64_t value) {
      CHECK(event == PlanControl::Event::Iteration && value == begun + 1);
      begun = value;
    });
    std::vector<PlannedForm> forms(3);
    for (uint32_t call = 0; call < forms.size(); ++call) forms[call].signature = forms[call].call = call;
    control.set_plan({{"a group", forms}}, {}, 3);
    for (int64_t iteration = 0; iteration < 3; ++iteration) {
      if (marks && iteration > 0) control.mark();
      for (uint64_t signature = 0; signature < forms.size(); ++signature) {
        for (int i = 0; i < 3; ++i) {
          const auto turn = control.enter("a group", {signature});
          CHECK(turn.form != nullptr && turn.form->signature == signature && turn.iteration == iteration);
          if (i < 2) control.give_back("a group", turn);
        }
      }
      CHECK(begun == iteration + 1);
    }
  }
}

namespace {

// The calls until an iteration of seven has been found. Each may fail before it is sent, alone and after another
// thread's call has failed, which the program does not make again; it may mark iterations, also when it makes a call
// again.
std::size_t calls_until_found(bool fails, bool marks) {
  bool found = false;
  PlanControl control([&](PlanControl::Event event, int64_t value) {
    CHECK(event == PlanControl::Event::Found && value == 7);
    found = true;
  });
  std::size_t made = 0;
  for (; !found && made < 1000; ++made) {
    PlanControl::What call;
    call.signature = made % 7;
    const bool marked = marks && call.signature == 3;
    if (marked) control.mark();
    if (fails) {
      control.give_back("a group", control.enter("a group", call));
      const auto first = control.enter("a group", call), other = control.enter("another group", {100});
      control.give_back("another group", other);
      control.give_back("a group", first);
      if (marked) control.mark();
    }
    if (!found) control.enter("a group", call);
  }
  if (!fails) CHECK(control.newest(8).front().signature == (marks ? 3U : 0U));
  return made;
}

}  // namespace

TEST(a_call_that_is_not_sent_is_not_seen) {
  for (const bool marks : {false, true}) {
    const auto without = calls_until_found(false, marks);
    CHECK(without < 1000 && calls_until_found(true, marks) == without);
  }
}

TEST(a_call_that_the_handler_refuses_is_not_counted) {
  int64_t told = 0;
  PlanControl control([&](PlanControl::Event event, int64_t value) {
    CHECK(event == PlanControl::Event::Iteration && value == ++told);
    if (told % 2 == 0) throw Error(ErrorCode::Backend, "refused");
  });
  control.set_plan({{"a group", std::vector<PlannedForm>(1)}}, {}, 1);
  for (int64_t iteration = 0; iteration < 6; ++iteration) {
    if (iteration % 2 == 1) CHECK(ranks::failure([&] { control.enter("a group", {}); }).text == "refused");
    CHECK(control.enter("a group", {}).iteration == iteration);
    CHECK(told == iteration + 1);
  }
}

TEST(iterations_that_the_handler_could_not_take_are_found_again) {
  for (const bool plans : {false, true}) {
    int found = 0;
    PlanControl control([&](PlanControl::Event event, int64_t) {
      if (event != PlanControl::Event::Found) return;
      ++found;
      if (plans) control.set_plan({}, {}, 0);
      throw Error(ErrorCode::Backend, "refused");
    });
    const auto enter = [&](uint64_t call) { control.enter("a group", {call % 7}); };
    uint64_t call = 0;
    const auto refused = ranks::failure([&] {
      for (; call < 1000; ++call) enter(call);
    });
    CHECK(found == 1 && refused.text == "refused");
    if (plans) enter(call);
    if (!plans) CHECK(ranks::failure([&] { enter(call); }).text == "refused");
    CHECK(found == (plans ? 1 : 2));
  }
}
