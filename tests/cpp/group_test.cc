// SPDX-License-Identifier: Apache-2.0
// Groups that end, or change, while other threads use them.
#include "group/group.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/pass.h"
#include "engine/wait.h"
#include "ranks.h"

namespace {

using namespace mcr;

// Like a library that reads its own memory after the operation.
class Counting : public Communicator {
 public:
  Counting() { ++alive; }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;
  ~Counting() override { --alive; }
  bool supports(const Call&) const override { return true; }
  void issue(const Call&, Lane&) override {
    ++calls_;
    std::this_thread::yield();
    ++calls_;
  }
  static std::atomic<int> alive;

 private:
  std::atomic<int> calls_{0};
};

std::atomic<int> Counting::alive{0};

std::unique_ptr<Communicator> made() { return std::make_unique<Counting>(); }

// Starts operations that end when a test says so.
class Late final : public Counting {
 public:
  struct Script {
    std::atomic<bool> ends{false}, holds{false};  // holds: a thread that polls stays there until the end
    std::atomic<bool> held{false};                // it has come
    bool fails = false;
  };
  explicit Late(Script& script) : script_(script) {}
  void issue(const Call&, Lane& lane) override { lane.track(std::make_unique<Running>(script_)); }

 private:
  class Running : public Request {
   public:
    explicit Running(Script& script) : script_(script) {}
    bool poll() override {
      script_.held = script_.holds.load();
      while (script_.held && !script_.ends) std::this_thread::yield();
      if (script_.ends && script_.fails) throw Error(ErrorCode::Backend, "cable cut");
      return script_.ends;
    }

   private:
    Script& script_;
  };

  Script& script_;
};

// Passes every call on.
class Through : public Pass {
 public:
  std::string_view name() const override { return "through"; }
  Outcome handle(Passage& passage, const Next& next) override { return next(passage); }
};

void call(Group& group, bool async) {
  if (async) {
    CHECK(ranks::start(group, Call())->wait_for(std::chrono::seconds(10)));
  } else {
    ranks::run(group, Call());
  }
}

// Makes calls until the group refuses them.
void make_calls(Group& group, bool async, std::atomic<int>& begun) {
  const auto end = ranks::failure([&] {
    call(group, async);
    for (++begun;;) call(group, async);
  });
  CHECK(end.code == ErrorCode::NotInitialized && check::has(end.text, "barrier", "destroyed"));
}

}  // namespace

TEST(a_group_closes_while_threads_make_calls) {
  for (int turn = 0; turn < 200; ++turn) {
    ranks::Alone alone(made);
    auto& group = alone.group();
    if (turn % 2 == 1) group.set_passes({std::make_shared<Through>()});
    std::atomic<int> begun{0};
    std::vector<std::thread> callers;
    for (const bool async : {false, true, false}) {
      callers.emplace_back([&group, &begun, async] { make_calls(group, async, begun); });
    }
    while (begun < 3) std::this_thread::yield();
    group.give_up();
    group.close();
    for (auto& caller : callers) caller.join();
    CHECK(alone.backend().progress.drain(std::chrono::seconds(60)));
    CHECK(Counting::alive == 0 && group.communicators().empty());
  }
}

TEST(a_thread_inside_keeps_the_communicators) {
  ranks::Alone alone(made);
  auto& group = alone.group();
  {
    const Group::Inside inside(group);
    group.close();
    CHECK(Counting::alive == 1 && group.find("fake") == nullptr);
  }
  CHECK(Counting::alive == 0);
  CHECK(ranks::failure([&] { const Group::Inside again(group); }).code == ErrorCode::NotInitialized);
}

// The thread that completes the operation releases the communicator, perhaps after this one has seen the end.
TEST(a_work_that_the_program_keeps_holds_the_communicator_only_while_it_runs) {
  for (const bool fails : {false, true}) {
    Late::Script script;
    script.fails = fails;
    ranks::Alone alone([&] { return std::make_unique<Late>(script); });
    const auto work = ranks::start(alone.group(), Call());
    alone.group().close();
    CHECK(!work->poll() && Counting::alive == 1 && !work->given_up());
    script.ends = true;
    CHECK(work->wait_for(std::chrono::seconds(10)) && work->failed() == fails);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (Counting::alive != 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    CHECK(Counting::alive == 0 && !work->given_up());
  }
}

TEST(an_abort_ends_waits_for_a_work_that_another_thread_polls) {
  Late::Script script;
  ranks::Alone alone([&] { return std::make_unique<Late>(script); });
  const auto work = ranks::start(alone.group(), Call());
  script.holds = true;
  while (!script.held) std::this_thread::yield();  // the progress thread
  ranks::Failure end;
  std::thread waiter([&] { end = ranks::failure([&] { wait(*work, std::chrono::seconds(10), nullptr); }); });
  abort(alone.group());
  waiter.join();
  CHECK(end.code == ErrorCode::Backend && check::has(end.text, "barrier", "aborted"));
  script.ends = true;
  CHECK(work->wait_for(std::chrono::seconds(10)) && !work->failed());
}

TEST(communicators_may_be_asked_for_while_the_group_changes) {
  ranks::Alone alone(made);
  Registry::Entry other;
  other.name = "other";
  other.backend = std::make_unique<ranks::MadeBackend>(made);
  std::atomic<bool> stop{false};
  std::thread watcher([&] {
    while (!stop) {
      const auto found = alone.group().communicators().size();
      CHECK(found == 1 || found == 2);
    }
  });
  for (int turn = 0; turn < 200; ++turn) {
    alone.group().adopt(other, made());
    alone.group().disconnect("other");
  }
  stop = true;
  watcher.join();
}
