// SPDX-License-Identifier: Apache-2.0
// Chains that change while calls run: each call goes through the one that it has entered with.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "codecs/codec.h"
#include "engine/deferred.h"
#include "engine/dispatch.h"
#include "engine/pass.h"
#include "ranks.h"

namespace {

using namespace mcr;
using namespace std::chrono_literals;

class Silent : public Communicator {
 public:
  bool supports(const Call&) const override { return true; }
  void issue(const Call& call, Lane&) override {
    if (call.op == Op::gather) throw Error(ErrorCode::Unsupported, "no gather");
  }
};

struct One {
  ranks::Alone alone{[] { return std::make_unique<Silent>(); }};
  Group& group() { return alone.group(); }
  int64_t calls() { return group().position().read().collectives; }
};

// Writes down the numbers of the calls that it sees.
class Notes : public Pass {
 public:
  std::string_view name() const override { return "notes"; }
  Outcome handle(Passage& passage, const Next& next) override {
    {
      const std::lock_guard lock(mutex_);
      seen.push_back(passage.notes.seq);
    }
    return next(passage);
  }
  std::vector<int64_t> seen;

 private:
  std::mutex mutex_;
};

// Gives the group other passes from inside of a call.
class Swaps : public Pass {
 public:
  explicit Swaps(Chain others) : others_(std::move(others)) {}
  std::string_view name() const override { return "swaps"; }
  Outcome handle(Passage& passage, const Next& next) override {
    passage.group.set_passes(others_);
    return next(passage);
  }

 private:
  const Chain others_;
};

// Raises before or after it has passed the call on.
class Raises : public Pass {
 public:
  explicit Raises(bool after) : after_(after) {}
  std::string_view name() const override { return "raises"; }
  Outcome handle(Passage& passage, const Next& next) override {
    if (after_) next(passage);
    throw Error(after_ ? ErrorCode::InvalidType : ErrorCode::Backend, "raised by a pass");
  }

 private:
  const bool after_;
};

// Holds an asynchronous call until it is let go.
class Holds : public Pass {
 public:
  std::string_view name() const override { return "holds"; }
  Outcome handle(Passage& passage, const Next& next) override {
    chain_ = next.chain();
    from_ = next.from();
    call_ = passage.call;
    passage.candidate = &passage.group.candidates().front();
    return {hold(passage, std::make_unique<DeferredRequest>(deferred_))};
  }
  void let_go(Group& group) {
    const auto chain = std::exchange(chain_, nullptr);  // which has this pass
    Extras extras;
    Passage passage{group, nullptr, call_, extras, true};
    deferred_->fulfil(Next(chain, from_)(passage).work);
  }

 private:
  std::shared_ptr<const Chain> chain_;
  std::size_t from_ = 0;
  Call call_;
  std::shared_ptr<Deferred> deferred_ = std::make_shared<Deferred>();
};

Call barrier() { return {}; }

}  // namespace

TEST(a_call_goes_on_through_the_chain_that_it_has_entered_with) {
  One one;
  const auto old = std::make_shared<Notes>(), young = std::make_shared<Notes>();
  for (const bool async : {false, true}) {
    one.group().set_passes({std::make_shared<Swaps>(Chain{young}), old});
    for (int i = 0; i < 2; ++i)
      async ? void(ranks::start(one.group(), barrier())) : void(ranks::run(one.group(), barrier()));
  }
  CHECK(old->seen == std::vector<int64_t>({1, 3}) && young->seen == std::vector<int64_t>({2, 4}));
}

TEST(a_held_call_keeps_its_chain) {
  One one;
  auto holds = std::make_shared<Holds>();
  auto behind = std::make_shared<Notes>();
  const std::weak_ptr<Pass> gone = behind;
  one.group().set_passes({holds, behind});
  const auto work = ranks::start(one.group(), barrier());
  one.group().set_passes({});
  ranks::run(one.group(), barrier());
  CHECK(behind->seen.empty() && !work->poll());
  holds->let_go(one.group());
  CHECK(work->wait_for(10s) && behind->seen.size() == 1);
  behind.reset();
  holds.reset();
  CHECK(gone.expired());
}

TEST(chains_change_while_threads_make_calls) {
  constexpr int kChains = 200;
  One one;
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (const bool async : {false, true, true}) {
    callers.emplace_back([&one, &stop, async] {
      while (!stop) {
        if (async) {
          CHECK(ranks::start(one.group(), barrier())->wait_for(10s));
        } else {
          ranks::run(one.group(), barrier());
        }
      }
    });
  }
  std::vector<std::vector<int64_t>> seen;
  std::vector<std::shared_ptr<Notes>> all;
  for (int i = 0; i < kChains; ++i) {
    all.push_back(std::make_shared<Notes>());
    one.group().set_passes(i % 8 == 7 ? Chain{} : Chain{all.back()});
    const auto before = one.calls();
    while (one.calls() < before + 3) std::this_thread::yield();
  }
  one.group().set_passes({});
  stop = true;
  for (auto& caller : callers) caller.join();
  int64_t last = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {  // each has a stretch of the numbers for itself
    auto& numbers = all[i]->seen;
    CHECK(numbers.empty() == (i % 8 == 7) && all[i].use_count() == 1);
    if (numbers.empty()) continue;
    std::sort(numbers.begin(), numbers.end());
    CHECK(numbers.front() > last && (i % 8 == 0 || numbers.front() == last + 1));
    CHECK(numbers.back() - numbers.front() + 1 == static_cast<int64_t>(numbers.size()));
    last = numbers.back();
  }
}

TEST(a_call_that_fails_before_it_is_sent_returns_its_number) {
  One one;
  ranks::run(one.group(), barrier());
  Coding coding;
  coding.automatic = true;
  Call wrong;  // needs a pass that the group does not have
  wrong.coding = &coding;
  for (const auto& [chain, code] : {std::pair{Chain{}, ErrorCode::InvalidArgument},
                                    std::pair{Chain{std::make_shared<Notes>()}, ErrorCode::InvalidArgument},
                                    std::pair{Chain{std::make_shared<Raises>(false)}, ErrorCode::Backend}}) {
    one.group().set_passes(chain);
    for (const bool async : {false, true}) {
      const auto got = ranks::failure(
          [&] { async ? void(ranks::start(one.group(), wrong)) : void(ranks::run(one.group(), wrong)); });
      CHECK(got.code == code && one.calls() == 1);
    }
  }
}

TEST(a_message_counts_if_it_is_sent_or_held) {
  Position::set_detail(true);
  ranks::Alone alone([] { return std::make_unique<Silent>(); }, 2);
  Position::set_detail(false);
  std::vector<float> data(4);
  Call call;
  call.op = Op::send;
  call.dtype = DType::Float;
  call.out = ranks::buffer(data);
  call.root = 1;
  int tag = 0;
  std::vector<int> counted;
  for (const auto& pass : Chain{std::make_shared<Raises>(false), std::make_shared<Raises>(true)}) {
    alone.group().set_passes({pass});
    for (const bool async : {false, true}) {
      call.tag = ++tag;
      const auto got = ranks::failure(
          [&] { async ? void(ranks::start(alone.group(), call)) : void(ranks::run(alone.group(), call)); });
      CHECK(check::has(got.text, "raised by a pass"));
    }
  }
  for (const auto& run : alone.group().position().take_traffic().runs) counted.push_back(run.stream.tag);
  CHECK((counted == std::vector<int>{3, 4}));
}

TEST(a_call_counts_if_a_part_of_it_is_held) {
  class Parts : public Pass {
   public:
    std::string_view name() const override { return "parts"; }
    Outcome handle(Passage& passage, const Next& next) override {
      Extras extras;
      Call call = passage.call;
      Passage part{passage.group, passage.candidate, call, extras, true};
      part.notes.whole = &passage.notes;
      next(part);
      throw Error(ErrorCode::Backend, "raised after a part");
    }
  };
  One one;
  const auto holds = std::make_shared<Holds>();
  one.group().set_passes({std::make_shared<Parts>(), holds});
  CHECK(check::has(ranks::failure([&] { ranks::start(one.group(), barrier()); }).text, "raised after a part"));
  CHECK(one.calls() == 1);
  holds->let_go(one.group());
  CHECK(one.alone.backend().progress.drain(10s));
}

TEST(a_call_that_a_backend_has_got_keeps_its_number) {
  One one;
  std::vector<float> in(4), out(4);
  Call refused;
  refused.op = Op::gather;
  refused.dtype = DType::Float;
  refused.in = ranks::buffer(in);
  refused.out = ranks::buffer(out);
  int64_t made = 0;
  for (const auto& [chain, call] :
       {std::pair{Chain{}, refused}, std::pair{Chain{std::make_shared<Raises>(true)}, barrier()}}) {
    one.group().set_passes(chain);
    for (const bool async : {false, true}) {
      const auto got =
          ranks::failure([&] { async ? void(ranks::start(one.group(), call)) : void(ranks::run(one.group(), call)); });
      CHECK(!got.text.empty() && one.calls() == ++made);
    }
  }
}
