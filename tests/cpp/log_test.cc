// SPDX-License-Identifier: Apache-2.0
#include "passes/log.h"

#include <algorithm>
#include <thread>

#include "check.h"
#include "codecs/codec.h"
#include "engine/pass.h"
#include "observe/recorder.h"
#include "ranks.h"

namespace {

using namespace mcr;
using namespace std::chrono_literals;
using Floats = std::vector<float>;

// Complete when told; fails if it has a reason to.
class Gate : public Request {
 public:
  Gate(const std::atomic<bool>& open, std::string problem) : open_(open), problem_(std::move(problem)) {}
  bool poll() override {
    const bool open = open_;  // one read: the gate may open at any time
    if (open && !problem_.empty()) throw Error(ErrorCode::Backend, problem_);
    return open;
  }
  int source() const override { return 3; }

 private:
  const std::atomic<bool>& open_;
  const std::string problem_;
};

// Blocking calls are done at once, or fail; started ones end when the test says so.
struct Behaviour {
  std::atomic<bool> open{false};
  std::string problem;
};

class Fake : public Communicator {
 public:
  explicit Fake(const Behaviour& behaviour) : behaviour_(behaviour) {}
  bool supports(const Call&) const override { return true; }
  bool forms_match() const override { return true; }
  void issue(const Call&, Lane& lane) override {
    if (!lane.blocking()) return lane.track(std::make_unique<Gate>(behaviour_.open, behaviour_.problem));
    if (!behaviour_.problem.empty()) throw Error(ErrorCode::Backend, behaviour_.problem);
    lane.set_source(2);
  }

 private:
  const Behaviour& behaviour_;
};

Log::Ops all() { return ~Log::Ops(); }

// A group of 4 ranks whose calls are logged, alone in this process. Reads what has been recorded since it was made.
struct Logged {
  Behaviour behaviour;
  ranks::Alone alone{[this] { return std::make_unique<Fake>(behaviour); }, 4, 1, "fake"};
  int64_t before = Recorder::instance().made();

  explicit Logged(Log::Ops ops = all()) { alone.group().set_passes({std::make_shared<Log>(alone.group(), ops)}); }
  ~Logged() {
    behaviour.open = true;
    alone.backend().progress.drain(10s);
  }
  std::vector<Reading> readings() const { return Recorder::instance().read(before + 1); }
  Record only() const {
    const auto all = readings();
    CHECK(all.size() == 1);
    return all.empty() ? Record{} : all.front().record;
  }
};

Call all_reduce(Floats& data) {
  Call call;
  call.op = Op::all_reduce;
  call.dtype = DType::Float;
  call.red = RedOp::MAX;
  call.out = ranks::buffer(data);
  return call;
}

Call message(Op op, Floats& data, int peer) {
  Call call;
  call.op = op;
  call.dtype = DType::Float;
  call.out = ranks::buffer(data);
  call.root = peer;
  call.tag = 7;
  return call;
}

Record numbered(int64_t number) {
  static const auto group = std::make_unique<RecordedGroup>();
  Record record;
  record.number = number;
  record.group = group.get();
  // Every field that a torn record would show.
  record.seq = record.in_count = record.out_count = record.bytes = record.issue = record.start = record.end = number;
  return record;
}

bool torn(const Record& record) {
  const int64_t number = record.number;
  return record.seq != number || record.in_count != number || record.out_count != number || record.bytes != number ||
         record.issue != number || record.start != number;
}

}  // namespace

TEST(a_blocking_call) {
  Logged logged;
  Floats data(6);
  const auto before = Recorder::now();
  ranks::run(logged.alone.group(), all_reduce(data));
  const auto record = logged.only();
  CHECK(record.op == Op::all_reduce && record.dtype == DType::Float && record.red == RedOp::MAX);
  CHECK(record.seq == 1 && record.bytes == 24 && record.in_count == 0 && record.out_count == 6);
  CHECK(record.backend != nullptr && *record.backend == "fake");
  CHECK(record.state == CallState::Completed && record.asynchronous == 0 && record.sent_bytes == -1);
  CHECK(before <= record.issue && record.start == record.issue && record.issue <= record.end);
  CHECK(record.end <= Recorder::now() && record.waited == 0);
  CHECK(record.group->name == "default" && record.group->rank == 1 && record.group->ranks.size() == 4);
}

TEST(an_asynchronous_call) {
  Logged logged;
  Floats data(6);
  const auto work = ranks::start(logged.alone.group(), all_reduce(data));
  auto record = logged.only();
  CHECK(record.state == CallState::Started && record.asynchronous == 1 && record.end == 0 &&
        record.issue <= record.start);
  CHECK(ranks::failure([&] { wait(*work, 10ms, nullptr); }).code == ErrorCode::Timeout);
  const auto first = logged.only();
  CHECK(first.state == CallState::Started && first.wait_begin >= first.start);
  CHECK(first.waited == first.wait_end - first.wait_begin && first.waited >= 5'000'000);
  CHECK(ranks::failure([&] { wait(*work, 10ms, nullptr); }).code == ErrorCode::Timeout);
  const auto second = logged.only();
  CHECK(second.wait_begin == first.wait_begin && second.wait_end > first.wait_end);
  CHECK(second.waited >= first.waited + 5'000'000);
  logged.behaviour.open = true;
  wait(*work, 10s, nullptr);
  CHECK(logged.alone.backend().progress.drain(10s));  // the log hears of the end after those that wait
  record = logged.only();
  CHECK(record.state == CallState::Completed && record.start <= record.end && record.waited >= second.waited);
  wait(*work, 10s, nullptr);  // it is over: no wait
  CHECK(logged.only().wait_end == record.wait_end);
}

TEST(a_work_without_a_wait_ends_in_the_log_too) {
  Logged logged;
  Floats data(6);
  ranks::start(logged.alone.group(), all_reduce(data));
  logged.behaviour.open = true;
  CHECK(logged.alone.backend().progress.drain(10s));
  CHECK(logged.only().state == CallState::Completed && logged.only().waited == 0);
}

TEST(failures) {
  Logged logged;
  logged.behaviour.problem = "link down";
  Floats data(6);
  const auto got = ranks::failure([&] { ranks::run(logged.alone.group(), all_reduce(data)); });
  CHECK(check::has(got.text, "link down"));
  const auto work = ranks::start(logged.alone.group(), all_reduce(data));
  logged.behaviour.open = true;
  CHECK(check::has(ranks::failure([&] { wait(*work, 10s, nullptr); }).text, "link down"));
  CHECK(logged.alone.backend().progress.drain(10s));
  const auto all = logged.readings();
  CHECK(all.size() == 2);
  for (const auto& reading : all) CHECK(reading.record.state == CallState::Failed && reading.record.end != 0);
  CHECK(all[0].record.backend != nullptr && *all[0].record.backend == "fake");
}

TEST(messages_are_counted_apart) {
  Logged logged;
  Floats data(2);
  ranks::run(logged.alone.group(), all_reduce(data));
  ranks::run(logged.alone.group(), message(Op::send, data, 3));
  ranks::run(logged.alone.group(), message(Op::recv, data, 0));
  ranks::run(logged.alone.group(), all_reduce(data));
  const auto all = logged.readings();
  CHECK(all.size() == 4);
  CHECK(all[0].record.seq == 1 && all[1].record.seq == 1 && all[2].record.seq == 2 && all[3].record.seq == 2);
  CHECK(all[2].record.root == 0);
  CHECK(all[1].record.root == 3 && all[1].record.tag == 7 && all[1].record.op == Op::send);
}

TEST(a_refused_message_has_no_number) {
  Logged logged;
  Floats data(2);
  Coding automatic;
  automatic.automatic = true;
  auto refused = message(Op::send, data, 3);  // needs a pass that the group does not have
  refused.coding = &automatic;
  const auto got = ranks::failure([&] { ranks::run(logged.alone.group(), refused); });
  CHECK(got.code == ErrorCode::InvalidArgument);
  ranks::run(logged.alone.group(), message(Op::send, data, 3));
  const auto all = logged.readings();
  CHECK(all.size() == 2 && all[0].record.seq == 0 && all[0].record.state == CallState::Failed);
  CHECK(all[1].record.seq == 1 && all[1].record.state == CallState::Completed);
}

TEST(who_has_sent_a_message_from_anybody) {
  Logged logged;
  Floats data(2);
  ranks::run(logged.alone.group(), message(Op::recv, data, kAnyRank));
  const auto work = ranks::start(logged.alone.group(), message(Op::recv, data, kAnyRank));
  CHECK(logged.readings()[1].record.root == kAnyRank);
  logged.behaviour.open = true;
  wait(*work, 10s, nullptr);
  CHECK(logged.alone.backend().progress.drain(10s));
  CHECK(logged.readings()[0].record.root == 2 && logged.readings()[1].record.root == 3);
}

TEST(calls_that_are_not_asked_for_are_counted_all_the_same) {
  Log::Ops ops;
  ops.set(static_cast<std::size_t>(Op::barrier));
  Logged logged(ops);
  Floats data(2);
  ranks::run(logged.alone.group(), all_reduce(data));
  ranks::run(logged.alone.group(), Call{});
  CHECK(logged.only().op == Op::barrier && logged.only().seq == 2 && logged.only().bytes == 0);
}

TEST(counts_of_vectored_calls) {
  Logged logged;
  Floats in(10), out(12);
  const std::vector<int64_t> sends{1, 2, 3, 4}, receives{3, 2, 4, 2};
  Call call;
  call.op = Op::all_to_all;
  call.dtype = DType::Float;
  call.vectored = true;
  call.in = ranks::buffer(in);
  call.out = ranks::buffer(out);
  call.in_counts = sends;
  call.out_counts = receives;
  ranks::run(logged.alone.group(), call);
  const auto all = logged.readings();
  CHECK(all.size() == 1 && all[0].in_splits == sends && all[0].out_splits == receives);
  CHECK(all[0].record.in_count == 10 && all[0].record.out_count == 11 && all[0].record.bytes == 44);
}

TEST(the_newest_stay) {
  Ring ring(4, 1);
  for (int64_t number = 1; number <= 6; ++number) ring.put(numbered(number));
  const auto all = ring.read(0, 7);
  CHECK(all.size() == 4 && all.front().record.number == 3 && all.back().record.number == 6);
  CHECK(ring.read(5, 7).size() == 2);
  CHECK(!ring.change(2, [](Record& record) { record.end = -1; }));
  CHECK(ring.change(4, [](Record& record) { record.end = -1; }));
  CHECK(ring.read(4, 7).front().record.end == -1);
  ring.put(numbered(1));  // a writer that was held up for a round
  CHECK(ring.read(0, 7).size() == 4 && ring.read(0, 7).front().record.number == 3);
}

TEST(splits_that_are_overwritten_or_too_many_are_not_shown) {
  Ring ring(2, 1);
  std::vector<int64_t> many(8192);
  auto put = [&](int64_t number, std::size_t count) {
    Record record = numbered(number);
    many[0] = number;
    ring.keep_splits(record, std::span(many).first(count), {});
    ring.put(record);
  };
  put(1, 3);
  CHECK(ring.read(1, 2).front().in_splits == std::vector<int64_t>({1, 0, 0}));
  for (int i = 0; i < 3; ++i) put(2, 8192);
  auto all = ring.read(1, 3);
  CHECK(all[0].record.truncated == 1 && all[0].in_splits.empty());
  CHECK(all[1].record.truncated == 0 && all[1].in_splits.size() == 8192 && all[1].in_splits[0] == 2);
  many.resize(8193);
  put(3, 8193);
  all = ring.read(3, 4);
  CHECK(all.size() == 1 && all[0].record.truncated == 1 && all[0].in_splits.empty());
}

TEST(concurrent_readers_never_see_half_a_record) {
  Ring ring(64, 1);
  std::atomic<int64_t> next{1};
  std::atomic<bool> enough{false};
  std::vector<std::jthread> writers;
  for (int writer = 0; writer < 2; ++writer) {
    writers.emplace_back([&] {
      while (!enough) {
        const auto number = next.fetch_add(1);
        ring.put(numbered(number));
        ring.change(number, [](Record& record) { record.end += 1; });
      }
    });
  }
  int wrong = 0;
  for (int seen = 0; seen < 20000;) {
    for (const auto& reading : ring.read(0, next)) {
      const auto& record = reading.record;
      if (torn(record) || record.end < record.number || record.end > record.number + 1) ++wrong;
      ++seen;
    }
  }
  enough = true;
  writers.clear();
  CHECK(wrong == 0);
  CHECK(ring.read(0, next).size() == 64);
}

TEST(threads_get_numbers_of_their_own) {
  Logged logged;
  constexpr int kCalls = 500;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        Floats data(2);
        for (int call = 0; call < kCalls; ++call) ranks::run(logged.alone.group(), all_reduce(data));
      });
    }
  }
  const auto all = logged.readings();
  std::vector<int64_t> seqs;
  std::vector<uint32_t> threads;
  for (const auto& reading : all) {
    seqs.push_back(reading.record.seq);
    threads.push_back(reading.record.thread);
  }
  std::sort(seqs.begin(), seqs.end());
  std::sort(threads.begin(), threads.end());
  CHECK(seqs.size() == 4 * kCalls && seqs.front() == 1 && seqs.back() == 4 * kCalls);
  CHECK(std::adjacent_find(seqs.begin(), seqs.end()) == seqs.end());
  CHECK(std::unique(threads.begin(), threads.end()) - threads.begin() == 4);
}

TEST(ranks_number_alike) {
  const auto before = Recorder::instance().made();
  ranks::together(3, [](Group& group) {
    group.set_passes({std::make_shared<Log>(group, all())});
    Floats data(4);
    for (int i = 0; i < 3; ++i) ranks::run(group, all_reduce(data));
    const auto work = ranks::start(group, all_reduce(data));
    wait(*work, 10s, nullptr);
  });
  std::vector<int> counts(5);
  for (const auto& reading : Recorder::instance().read(before + 1)) {
    CHECK(reading.record.state == CallState::Completed && reading.record.seq <= 4);
    ++counts[static_cast<std::size_t>(reading.record.seq)];
  }
  CHECK(counts == std::vector<int>({0, 3, 3, 3, 3}));
}

// Blocking calls wait until another thread has given up the communicator, which ends them.
class Stuck : public Communicator {
 public:
  explicit Stuck(std::atomic<bool>& waits) : waits_(waits) {}
  bool supports(const Call&) const override { return true; }
  void issue(const Call&, Lane& lane) override { lane.track(std::make_unique<Given>(waits_, ended_)); }
  void abort() noexcept override { *ended_ = true; }

 private:
  using Ended = std::shared_ptr<std::atomic<bool>>;
  struct Given : Request {
    Given(std::atomic<bool>& waiting, Ended end) : waits(waiting), ended(std::move(end)) {}
    bool poll() override {
      waits = true;
      while (!*ended) std::this_thread::yield();
      throw Error(ErrorCode::Backend, "given up");
    }
    std::atomic<bool>& waits;
    Ended ended;
  };

  std::atomic<bool>& waits_;
  Ended ended_ = std::make_shared<std::atomic<bool>>(false);
};

TEST(a_blocking_call_of_a_group_that_is_closed_meanwhile) {
  std::atomic<bool> waits{false};
  ranks::Alone alone([&] { return std::make_unique<Stuck>(waits); });
  alone.group().set_passes({std::make_shared<Log>(alone.group(), all())});
  const auto before = Recorder::instance().made();
  std::thread other([&] {
    while (!waits) std::this_thread::yield();
    const auto communicators = alone.group().communicators();
    alone.group().close();
    for (const auto& communicator : communicators) communicator->give_up();
  });
  Floats data(4);
  const auto got = ranks::failure([&] { ranks::run(alone.group(), all_reduce(data)); });
  other.join();
  CHECK(check::has(got.text, "given up"));
  const auto seen = Recorder::instance().read(before + 1);
  CHECK(seen.size() == 1 && seen[0].record.state == CallState::Failed && *seen[0].record.backend == "fake");
  CHECK(alone.group().communicators().empty() && alone.group().find("fake") == nullptr);
}

TEST(another_capacity_begins_an_empty_log) {
  Logged logged;
  Floats data(2);
  const auto work = ranks::start(logged.alone.group(), all_reduce(data));
  auto& recorder = Recorder::instance();
  recorder.resize(16);
  CHECK(recorder.capacity() == 16 && logged.readings().empty() && recorder.lost() == 0);
  logged.behaviour.open = true;
  wait(*work, 10s, nullptr);  // its record is gone
  CHECK(logged.readings().empty());
  for (int i = 0; i < 20; ++i) ranks::run(logged.alone.group(), all_reduce(data));
  CHECK(logged.readings().size() == 16 && recorder.lost() == 4 && logged.readings().back().record.seq == 21);
  recorder.resize(Recorder::kCapacity);
}

TEST(a_former_capacity_uses_its_memory_again) {
  Logged logged;
  Floats data(2);
  auto& recorder = Recorder::instance();
  recorder.resize(16);
  const auto* first = &recorder.ring();
  const auto late = ranks::start(logged.alone.group(), all_reduce(data));
  recorder.resize(32);
  const auto* second = &recorder.ring();
  for (int round = 0; round < 3; ++round) {
    recorder.resize(16);
    CHECK(&recorder.ring() == first && recorder.capacity() == 16 && logged.readings().empty() && recorder.lost() == 0);
    logged.behaviour.open = true;
    wait(*late, 10s, nullptr);
    CHECK(logged.readings().empty());
    for (int i = 0; i < 20; ++i) ranks::run(logged.alone.group(), all_reduce(data));
    CHECK(logged.readings().size() == 16 && recorder.lost() == 4);
    recorder.resize(32);
    CHECK(&recorder.ring() == second && logged.readings().empty());
  }
  recorder.resize(Recorder::kCapacity);
}

TEST(a_group_keeps_its_numbers_and_outlives_itself) {
  const auto before = Recorder::instance().made();
  const RecordedGroup* group = nullptr;
  {
    Logged logged;
    Floats data(2);
    ranks::run(logged.alone.group(), all_reduce(data));
    logged.alone.group().set_passes({});
    ranks::run(logged.alone.group(), all_reduce(data));
    logged.alone.group().set_passes({std::make_shared<Log>(logged.alone.group(), all())});
    ranks::run(logged.alone.group(), all_reduce(data));
    group = logged.readings().back().record.group;
  }
  const auto all = Recorder::instance().read(before + 1);
  CHECK(all.size() == 2 && all[1].record.seq == 2 && all[1].record.group == group && group->name == "default");
  Logged another;
  const auto& later = another.alone.group();
  CHECK(Recorder::instance().enter(later.position()).instance == group->instance + 1);
}
