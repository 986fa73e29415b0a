// SPDX-License-Identifier: Apache-2.0
// The end of calls in the order of a plan.
#include "passes/schedule/enforcer.h"

#include <memory>
#include <string>
#include <utility>

#include "check.h"

namespace {

using namespace mcr;

// Uses the enforcer when the last reference to its call ends, as an object of a program may.
class Asks {
 public:
  Asks(const Enforcer& enforcer, int& asked) : enforcer_(enforcer), asked_(asked) {}
  Asks(const Asks&) = delete;
  Asks& operator=(const Asks&) = delete;
  ~Asks() {
    static_cast<void>(enforcer_.statistics());
    ++asked_;
  }

 private:
  const Enforcer& enforcer_;
  int& asked_;
};

// Calls of which nothing but the enforcer has a reference.
struct Calls {
  std::shared_ptr<Enforcer> enforcer = std::make_shared<Enforcer>();
  int asked = 0;
  const std::string* lost = nullptr;

  void make(uint32_t call) {
    auto schedule = Schedule::make();
    Call one;
    one.op = Op::barrier;
    schedule->issue(one, schedule->late_after({}));
    schedule->own(std::make_shared<Asks>(*enforcer, asked));
    auto run = std::make_shared<Run>(std::move(schedule), [](const Task&, Requests&) {});
    run->begin(nullptr);
    enforcer->submit({std::move(run), call, 0, {enforcer->new_lane()}, nullptr, [this] { return lost; }});
  }
};

}  // namespace

TEST(a_call_that_was_issued_is_released_without_the_lock) {
  Calls calls;
  calls.make(0);
  CHECK(calls.asked == 1);
  calls.enforcer->set_order({{1, 0, 0}, {0, 0, 0}}, 2, 0);
  calls.make(0);
  CHECK(calls.asked == 1);
  calls.make(1);
  CHECK(calls.asked == 3);
}

TEST(a_call_of_a_lost_group_is_released_without_the_lock) {
  const std::string lost = "gone";
  Calls calls;
  calls.enforcer->set_order({{1, 0, 0}, {0, 0, 0}}, 2, 0);
  calls.make(0);
  calls.lost = &lost;
  calls.enforcer->drive();
  CHECK(calls.asked == 1 && !calls.enforcer->pending());
}
