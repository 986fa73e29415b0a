// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "check.h"
#include "fusing.h"
#include "ranks.h"

using namespace fusing;

TEST(a_failed_flush_fails_its_calls_alone) {
  One one(limits(32));
  one.fused.fail_after = 0;
  Floats a(4), b(4), c(4);
  const auto first = one.start(call(Op::all_reduce, a)), second = one.start(call(Op::all_reduce, b));
  for (const auto& work : {first, second}) {
    CHECK(work->wait_for(10s) && work->failed());
    CHECK(
        check::has(ranks::failure([&] { work->rethrow(); }).text, "fake.all_reduce (group 'default'", "out of order"));
  }
  one.fused.fail_after = 10;
  const auto third = one.start(call(Op::all_reduce, c));
  CHECK(third->wait_for(10s) && !third->failed());
}

TEST(a_flush_may_fail_with_any_exception) {
  One one(limits(32));
  one.fused.fail_after = 0;
  one.fused.out_of_memory = true;
  Floats a(4), b(4);
  const auto first = one.start(call(Op::all_reduce, a)), second = one.start(call(Op::all_reduce, b));
  for (const auto& work : {first, second}) CHECK(work->wait_for(10s) && work->failed());
  CHECK(!Executor::any());
}

TEST(held_calls_keep_a_candidate_that_the_group_gives_up) {
  One one(limits(1000));
  Floats a(4), b(4);
  const auto first = one.start(call(Op::all_reduce, a)), second = one.start(call(Op::all_reduce, b));
  one.alone.group().disconnect("fake");
  one.shadow->group().disconnect("fake");
  CHECK(first->wait_for(10s) && second->wait_for(10s) && !first->failed() && !second->failed());
  CHECK(one.fused.calls.size() == 1 && one.fused.calls[0].out.count == 8);
}

TEST(held_calls_of_a_group_that_is_closed_fail) {
  One one(limits(1000));
  Floats data(4);
  const auto work = one.start(call(Op::all_reduce, data));
  one.alone.group().close();
  one.shadow->group().close();
  CHECK(work->wait_for(10s) && work->failed());
  CHECK(check::has(ranks::failure([&] { work->rethrow(); }).text, "fake.all_reduce", "the group has been destroyed"));
}

TEST(a_call_that_has_ended_does_not_keep_the_communicator_of_its_flush) {
  for (const bool fails : {false, true}) {
    One one(limits(16));
    if (fails) one.fused.fail_after = 0;
    Floats data(4);
    const auto work = one.start(call(Op::all_reduce, data));
    CHECK(work->wait_for(10s) && work->failed() == fails);
    const std::weak_ptr<Communicator> known = one.shadow->group().find("fake")->communicator;
    one.shadow->group().close();
    CHECK(known.expired());
  }
}

TEST(a_broken_agreement_refuses_later_calls) {
  Counter::Log log, fused;
  ranks::Alone alone([&] { return std::make_unique<Counter>(log); }, 2, 0);
  auto shadow = std::make_shared<ranks::Alone>([&] { return std::make_unique<Counter>(fused); }, 2, 0);
  const auto pass = fuse(alone.group(), {shadow, &shadow->group()}, limits(1000));
  fused.fail_after = 0;
  Floats data(4);
  const auto work = ranks::start(alone.group(), call(Op::all_reduce, data));
  CHECK(work->wait_for(10s) && work->failed());
  const auto got = ranks::failure([&] { ranks::start(alone.group(), call(Op::all_reduce, data)); });
  CHECK(got.code == ErrorCode::Backend && check::has(got.text, "fake.all_reduce (group 'default'", "out of order"));
  ranks::run(alone.group(), call(Op::all_reduce, data));  // what is not fused goes on
  CHECK(log.calls.size() == 1);
}

TEST(a_round_that_meets_another_call_breaks_the_agreement) {
  for (const int64_t agreed : {-1, 2, 1 << 30}) {
    Counter::Log log, fused;
    ranks::Alone alone([&] { return std::make_unique<Counter>(log); }, 2, 0);
    auto shadow = std::make_shared<ranks::Alone>([&] { return std::make_unique<Counter>(fused); }, 2, 0);
    const auto pass = fuse(alone.group(), {shadow, &shadow->group()}, limits(1000));
    fused.agreed = agreed;
    CHECK(!pass->broken());
    Floats data(4);
    const auto work = ranks::start(alone.group(), call(Op::all_reduce, data));
    CHECK(work->wait_for(10s) && work->failed());
    CHECK(check::has(ranks::failure([&] { work->rethrow(); }).text,
                     "expected the ranks to agree on 1 to 1 held calls, got " + std::to_string(agreed)));
    CHECK(pass->broken() && fused.calls.size() == 1);  // the round
  }
}

TEST(nothing_stays_pending_after_a_broken_agreement) {
  constexpr int kTrials = 300;
  for (int trial = 0; trial < kTrials; ++trial) {
    Counter::Log log, fused;
    ranks::Alone alone([&] { return std::make_unique<Counter>(log); }, 2, 0);
    auto shadow = std::make_shared<ranks::Alone>([&] { return std::make_unique<Counter>(fused); }, 2, 0);
    const auto pass = fuse(alone.group(), {shadow, &shadow->group()}, limits(1 << 20, 50us));
    fused.fail_after = 0;
    // One thread finds that the agreement is broken while the other ones make calls.
    const auto until_refused = [&] {
      Floats data(4);
      std::vector<std::shared_ptr<Work>> works;
      const auto got = ranks::failure([&] {
        for (;;) works.push_back(ranks::start(alone.group(), call(Op::all_reduce, data)));
      });
      CHECK(check::has(got.text, "cannot agree"));
      for (const auto& work : works) CHECK(work->wait_for(10s) && work->failed());
    };
    std::thread one(until_refused), other(until_refused);
    until_refused();
    one.join();
    other.join();
    const bool ended = pass->synchronize(10s) && !Executor::any();
    CHECK(ended);
    if (!ended) return;
  }
}
