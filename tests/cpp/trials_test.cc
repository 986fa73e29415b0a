// SPDX-License-Identifier: Apache-2.0
#include "choose/trials.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "choose/curve.h"

using namespace mcr;
using namespace std::chrono_literals;

namespace {

Call call(Op op = Op::all_reduce, bool asynchronous = false) {
  Call made;
  made.op = op;
  made.dtype = DType::Float;
  made.asynchronous = asynchronous;
  return made;
}

// The trials of one rank, which finds that candidates take the given times.
class Rank {
 public:
  explicit Rank(std::vector<int64_t> times, std::size_t usual = 0)
      : times_(std::move(times)), usual_(usual), trials_(made(times_.size())) {}

  /// The candidate of the next call; nothing while it must wait for an agreement.
  std::optional<std::size_t> call(const Call& call, int64_t bytes) {
    auto turn = trials_->next(call, bytes, [this] { return options(); });
    if (!turn) return std::nullopt;
    if (turn->trial != nullptr) {
      ++timed;
      turn->trial->waited(std::chrono::nanoseconds(times_[turn->candidate]));
    }
    return turn->candidate;
  }
  Trials& trials() { return *trials_; }
  int timed = 0;

 private:
  static std::shared_ptr<Trials> made(std::size_t candidates) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < candidates; ++i) names.push_back("candidate " + std::to_string(i));
    return std::make_shared<Trials>("group", 0, names);
  }
  Trials::Options options() const {
    Trials::Options all{usual_, {}};
    for (std::size_t i = 0; i < times_.size(); ++i) all.tried.push_back(i);
    return all;
  }

  std::vector<int64_t> times_;
  std::size_t usual_;
  std::shared_ptr<Trials> trials_;
};

std::vector<Trials::Report> taken() {
  std::vector<Trials::Report> reports;
  while (auto report = Trials::take(0ns)) reports.push_back(std::move(*report));
  return reports;
}

// The times of one round on which ranks with these reports agree.
Trials::Times merged(const std::vector<Trials::Report>& round) {
  auto times = round.front().times();
  for (const auto& report : round) {
    CHECK(report.what() == round.front().what());
    const auto theirs = report.times();
    for (std::size_t i = 0; i < times.size(); ++i) {
      for (std::size_t turn = 0; turn < times[i].size(); ++turn) {
        auto& time = times[i][turn];
        time = report.largest_counts() ? std::max(time, theirs[i][turn]) : std::min(time, theirs[i][turn]);
      }
    }
  }
  return times;
}

// Lets the ranks agree on reports that all of them have made, and returns the others.
std::vector<Trials::Report> agree(std::vector<Trials::Report> reports, std::size_t ranks) {
  std::map<std::string, std::vector<Trials::Report>> rounds;
  for (auto& report : reports) rounds[report.key()].push_back(std::move(report));
  std::vector<Trials::Report> open;
  for (auto& [key, round] : rounds) {
    if (round.size() < ranks) {
      std::ranges::move(round, std::back_inserter(open));
      continue;
    }
    const auto times = merged(round);
    for (const auto& report : round) report.agree(times);
  }
  return open;
}

// Makes calls of one rank until its trials are over; how often each candidate got one.
std::map<std::size_t, int> decide(Rank& rank, const Call& call, int64_t bytes) {
  std::map<std::size_t, int> counts;
  while (!rank.trials().result(call, bytes)) {
    if (const auto candidate = rank.call(call, bytes)) {
      ++counts[*candidate];
    } else {
      agree(taken(), 1);
    }
  }
  return counts;
}

}  // namespace

TEST(the_fastest_candidate_wins) {
  Rank rank({3000, 100'000, 1000, 4000});
  const auto counts = decide(rank, call(), 1024);
  CHECK(rank.call(call(), 1024) == 2u);
  CHECK(rank.call(call(), 1500) == 2u);  // the same octave
  CHECK(counts.at(1) == 4);              // 100 times as slow as the best: one round
  CHECK(counts.at(3) == 4 + 6);          // four times as slow: two rounds
  const auto result = rank.trials().result(call(), 1024);
  CHECK(result && result->usual == 0 && result->chosen == 2 && result->costs.size() == 4);
  const int timed = rank.timed;
  for (int i = 0; i < 5000; ++i) rank.call(call(), 1024);
  CHECK(rank.timed == timed);
  CHECK(taken().empty());
}

TEST(the_usual_candidate_stays_unless_another_is_clearly_faster) {
  Rank rank({1000, 950});
  decide(rank, call(), 1024);
  CHECK(rank.call(call(), 1024) == 0u);
}

TEST(sizes_forms_and_operations_are_tried_apart) {
  Rank rank({2000, 1000});
  decide(rank, call(), 1024);
  CHECK(!rank.trials().result(call(), 4096));
  CHECK(!rank.trials().result(call(Op::all_reduce, true), 1024));
  CHECK(!rank.trials().result(call(Op::all_gather), 1024));
  auto other = call();
  other.red = RedOp::MAX;
  CHECK(!rank.trials().result(other, 1024));
  other = call();
  other.dtype = DType::Double;  // the same class of types
  CHECK(!rank.trials().result(other, 1024));
  other.op = Op::all_gather;  // moves data: all types alike
  decide(rank, other, 1024);
  CHECK(rank.trials().result(call(Op::all_gather), 1024));
}

TEST(works_of_asynchronous_calls_have_time_until_the_report) {
  for (const auto& [asynchronous, bytes, later] : {std::tuple{false, 1024, 0},
                                                   {true, 1024, 512},
                                                   {true, 64 << 10, 128},
                                                   {true, 1 << 20, 16},
                                                   {true, 2 << 20, 4}}) {
    Rank rank({3000, 1000});
    const auto kind = call(Op::all_reduce, asynchronous);
    for (int i = 0; i < 2 * 4 + later; ++i) rank.call(kind, bytes);
    CHECK(taken().empty());
    rank.call(kind, bytes);
    CHECK(taken().size() == 1);
  }
}

TEST(a_work_counts_once) {
  const auto trials = std::make_shared<Trials>("group", 0, std::vector<std::string>{"a", "b"});
  while (const auto turn = trials->next(call(), 1024, [] { return Trials::Options{0, {0, 1}}; })) {
    if (turn->trial == nullptr) continue;
    for (const auto time : {100ns, 5000ns})
      turn->trial->waited(time);  // such as by a callback, and later by the caller
  }
  for (const auto& times : taken().front().times()) CHECK(times.back() == 100);
}

TEST(one_quick_call_does_not_make_a_candidate_fast) {
  Rank rank({3000, 4000});
  while (rank.call(call(), 1024)) {
  }
  const auto report = taken().front();
  auto times = report.times();
  times[1][1] = 1000;
  report.agree(times);
  decide(rank, call(), 1024);
  const auto result = rank.trials().result(call(), 1024);
  CHECK(result->chosen == 0 && result->costs[1].second == fixed_log2(4000));
}

// Three ranks that measure different times, and learn of an agreement at different times.
TEST(all_ranks_use_one_candidate_in_every_call) {
  std::mt19937 random(7);
  const std::vector<std::pair<Call, int64_t>> kinds = {
      {call(), 1024}, {call(), 1 << 20}, {call(Op::all_gather, true), 64}, {call(Op::broadcast), 0}};
  std::vector<Rank> ranks;
  ranks.emplace_back(std::vector<int64_t>{4000, 3000, 2000});
  ranks.emplace_back(std::vector<int64_t>{5000, 3000, 1500});
  ranks.emplace_back(std::vector<int64_t>{5000, 3500, 3000});
  std::vector<std::size_t> order;  // the kinds of all calls
  for (int i = 0; i < 20000; ++i) order.push_back(random() % kinds.size());
  std::vector<std::vector<std::size_t>> used(ranks.size());
  std::vector<Trials::Report> open;
  while (std::ranges::any_of(used, [&](const auto& one) { return one.size() < order.size(); })) {
    const auto index = random() % ranks.size();
    for (int burst = static_cast<int>(random() % 50); burst > 0 && used[index].size() < order.size(); --burst) {
      const auto& [kind, bytes] = kinds[order[used[index].size()]];
      const auto candidate = ranks[index].call(kind, bytes);
      if (!candidate) break;
      used[index].push_back(*candidate);
    }
    std::ranges::move(taken(), std::back_inserter(open));
    if (random() % 4 == 0) open = agree(std::move(open), ranks.size());
  }
  CHECK(used[0] == used[1] && used[1] == used[2]);
  CHECK(ranks[0].trials().results().size() == kinds.size());
  // The last rank to come decides, which waits least; of a broadcast the slowest.
  for (const auto& result : ranks[1].trials().results()) {
    CHECK(result.costs.size() == 3 &&
          result.costs[2].second == fixed_log2(result.call.op == Op::broadcast ? 3000 : 1500));
    CHECK(result.chosen == 2);
  }
}

TEST(a_call_that_is_not_sent_gives_its_number_back) {
  Rank rank({3000, 1000}), other({3000, 1000});
  const auto options = [] { return Trials::Options{0, {0, 1}}; };
  for (bool open = true; open;) {
    if (const auto failed = rank.trials().next(call(), 1024, options)) rank.trials().withdraw(failed->count);
    const auto candidate = rank.call(call(), 1024);
    CHECK(candidate == other.call(call(), 1024));
    open = candidate.has_value();
  }
  CHECK(taken().size() == 2);  // one report of each rank
}

// Another thread's call has followed, perhaps in the next round.
TEST(a_call_that_is_not_sent_counts_if_others_have_followed) {
  Rank rank({3000, 1000}), other({3000, 1000});
  const auto options = [] { return Trials::Options{0, {0, 1}}; };
  const auto first = rank.trials().next(call(), 1024, options)->count;
  other.call(call(), 1024);
  for (int round = 0; round < 2; ++round) {
    for (auto* const each : {&rank, &other}) each->call(call(), 1024);
    rank.trials().withdraw(first);
    for (bool open = true; open;) {
      const auto candidate = rank.call(call(), 1024);
      CHECK(candidate == other.call(call(), 1024));
      open = candidate.has_value();
    }
    CHECK(agree(taken(), 2).empty());
  }
}

// It may have another size than the call that the other ranks make first, or no candidates to try.
TEST(a_first_call_that_is_not_sent_leaves_no_bucket) {
  Rank rank({3000, 1000}), other({3000, 1000});
  for (const auto tried : {std::size_t{1}, std::size_t{2}}) {
    const auto options = [&] { return Trials::Options{0, std::vector<std::size_t>(tried, 0)}; };
    for (const int64_t bytes : {64, 4096}) {
      const auto failed = rank.trials().next(call(), bytes, options);
      CHECK(!failed->decided);
      rank.trials().withdraw(failed->count);
    }
  }
  std::size_t candidates = 0;
  for (bool open = true; open; ++candidates) {
    const auto candidate = rank.call(call(), 5000);
    CHECK(candidate == other.call(call(), 5000));
    open = candidate.has_value();
  }
  CHECK(candidates > 8);
  // The reports meet, although only one rank has tried to make smaller calls.
  CHECK(rank.call(call(), 64) == other.call(call(), 64));
  const auto reports = taken();
  CHECK(reports.size() == 2 && reports[0].key() == reports[1].key() && reports[0].what() == reports[1].what());
}

TEST(a_bucket_without_candidates_to_try_is_decided_at_its_second_call) {
  Rank rank({3000});
  const auto turn = [&] { return rank.trials().next(call(), 1024, [] { return Trials::Options{0, {0}}; }); };
  CHECK(!turn()->decided && turn()->decided && turn()->decided);
}

TEST(results_of_an_earlier_job_are_not_tried_again) {
  Rank rank({3000, 1000, 2000});
  auto kind = call();
  kind.size_hint = 1024;
  rank.trials().remember(kind, 0, 3 << 16);
  rank.trials().remember(kind, 2, 2 << 16);
  CHECK(rank.call(call(), 1024) == 2u && rank.timed == 0);
  CHECK(rank.trials().result(call(), 1500)->costs.size() == 2);
  rank.call(call(), 4096);
  CHECK(rank.timed == 1);
}

TEST(without_an_agreement_the_usual_candidate_stays) {
  Rank rank({3000, 1000});
  while (rank.call(call(), 1024)) {
  }
  const auto reports = taken();
  CHECK(reports.size() == 1);
  reports.front().abandon();
  CHECK(rank.call(call(), 1024) == 0u);
  CHECK(rank.trials().results().empty());
}

TEST(trials_that_end_in_a_later_round_have_no_result) {
  Rank rank({3000, 1000});
  while (rank.call(call(), 1024)) {
  }
  const auto first = taken().front();
  first.agree(first.times());
  while (rank.call(call(), 1024)) {
  }
  taken().front().abandon();
  CHECK(rank.call(call(), 1024) == 0u);
  CHECK(rank.trials().results().empty() && !rank.trials().result(call(), 1024));
}

TEST(a_candidate_that_one_rank_has_not_timed_is_not_chosen) {
  Rank rank({3000, 1000});
  while (rank.call(call(), 1024)) {
  }
  const auto reports = taken();
  auto times = reports.front().times();
  CHECK(times.size() == 2 && times[0].back() == 3000 && times[1].back() == 1000);
  std::ranges::fill(times[1], Trials::kNotTimed);
  reports.front().agree(times);
  CHECK(rank.call(call(), 1024) == 0u);
  CHECK(taken().empty());
}

TEST(a_call_that_was_disturbed_does_not_count) {
  Rank rank({3000, 1000});
  while (rank.call(call(), 1024)) {
  }
  const auto reports = taken();
  auto times = reports.front().times();
  CHECK(times[1].front() == Trials::kNotTimed);  // the first call of each candidate
  times[1][1] = times[1][2] = 1'000'000;
  reports.front().agree(times);
  CHECK(rank.call(call(), 1024).has_value());
  CHECK(decide(rank, call(), 1024).at(1) > 9);
  CHECK(rank.call(call(), 1024) == 1u);
}

TEST(small_works_that_are_not_waited_for_teach_nothing) {
  const auto trials = std::make_shared<Trials>("group", 0, std::vector<std::string>{"a", "b"});
  const auto options = [] { return Trials::Options{0, {0, 1}}; };
  const auto kind = call(Op::all_reduce, true);
  while (const auto turn = trials->next(kind, 1024, options)) {
    if (turn->trial == nullptr) continue;
    turn->trial->returned();
    turn->trial->ended();
  }
  const auto reports = taken();
  CHECK(reports.size() == 1);
  for (const auto& times : reports.front().times())
    CHECK(std::ranges::all_of(times, [](int64_t time) { return time < 0; }));
  reports.front().agree(reports.front().times());
  CHECK(trials->next(kind, 1024, options)->candidate == 0);
  CHECK(trials->results().empty());
}

namespace {

// The first candidate's operation takes 50 ms and the second one's nothing, while the caller does other things.
int64_t first_time(Op op, int64_t bytes) {
  const auto trials = std::make_shared<Trials>("group", 0, std::vector<std::string>{"a", "b"});
  const auto options = [] { return Trials::Options{0, {0, 1}}; };
  const auto kind = call(op, true);
  std::vector<std::shared_ptr<Trial>> hidden;
  while (const auto turn = trials->next(kind, bytes, options)) {
    if (turn->trial == nullptr) continue;
    turn->trial->returned();
    if (turn->candidate == 0) {
      hidden.push_back(turn->trial);
    } else {
      turn->trial->ended();
      turn->trial->waited(100ns);
    }
  }
  std::this_thread::sleep_for(50ms);
  for (const auto& trial : hidden) {
    trial->ended();
    trial->waited(100ns);
  }
  const auto times = taken().front().times();
  CHECK(times[1].back() >= 100 && times[1].back() < 40'000'000);
  return times[0].back();
}

}  // namespace

TEST(a_large_hidden_collective_costs_the_time_until_it_is_complete) {
  CHECK(first_time(Op::all_reduce, 1 << 20) >= 40'000'000);
  CHECK(first_time(Op::all_reduce, 1024) < 40'000'000);    // which has the time until a thread looks
  CHECK(first_time(Op::broadcast, 1 << 20) < 40'000'000);  // which has the time until the root comes
}

TEST(results_name_those_of_an_earlier_job) {
  Rank rank({3000, 1000});
  Call kind = call();
  kind.size_hint = 1024;
  rank.trials().remember(kind, 0, fixed_log2(3000));
  rank.trials().remember(kind, 1, fixed_log2(1000));
  CHECK(rank.call(call(), 1024) == 1u);
  decide(rank, call(), 1 << 20);
  const auto results = rank.trials().results();
  CHECK(results.size() == 2 && results[0].remembered && !results[1].remembered);
}

TEST(a_call_waits_for_the_agreement) {
  Rank rank({3000, 1000});
  while (rank.call(call(), 1024)) {
  }
  const auto report = taken().front();
  CHECK(report.awaited() == 0ns);
  std::thread other([&] {
    while (report.awaited() == 0ns) std::this_thread::yield();
    report.agree(report.times());
  });
  rank.trials().await(call(), 1024, [] {});
  other.join();
  CHECK(rank.call(call(), 1024).has_value());
}

TEST(a_report_tells_that_its_group_has_been_closed) {
  Rank rank({3000, 1000});
  while (rank.call(call(), 1024)) {
  }
  const auto report = taken().front();
  CHECK(!report.closed());
  rank.trials().close();
  CHECK(report.closed());
}

TEST(two_calls_wait_for_one_agreement) {
  for (int turn = 0; turn < 50; ++turn) {
    Rank rank({3000, 1000});
    while (rank.call(call(), 1024)) {
    }
    const auto report = taken().front();
    const auto wait = [&] {
      rank.trials().await(call(), 1024, [begin = Trial::Clock::now()] {
        // Without an end it waits for the next round, which needs further calls.
        if (Trial::Clock::now() - begin > 30s) throw Error(ErrorCode::Timeout, "waits for another agreement");
      });
      CHECK(rank.trials().next(call(), 1024, [] { return Trials::Options(); }).has_value());
    };
    std::thread first(wait), second(wait);
    while (report.awaited() == 0ns) std::this_thread::yield();
    report.agree(report.times());
    first.join();
    second.join();
  }
}

TEST(a_wait_for_an_agreement_can_fail) {
  Rank rank({3000, 1000});
  while (rank.call(call(), 1024)) {
  }
  const auto report = taken().front();
  const auto text_of = [&](const std::function<void()>& check) {
    try {
      rank.trials().await(call(), 1024, check);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  CHECK(text_of([] { throw Error(ErrorCode::PeerLost, "rank 1 is lost"); }) == "rank 1 is lost");
  report.fail("the store is lost");
  for (int later = 0; later < 2; ++later) {  // which candidate the other ranks use stays unknown
    CHECK(text_of([] {}) == "the store is lost");
    CHECK(!rank.trials().next(call(), 1024, [] { return Trials::Options(); }).has_value());
  }
}
