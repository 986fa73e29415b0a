// SPDX-License-Identifier: Apache-2.0
#include "choose/plan_search.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <utility>

#include "choose/curve.h"
#include "choose/refuse.h"

namespace mcr {

namespace {

__extension__ using Wide = __int128;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kLeast = 512;  // evaluations of a chain, and for each call below
constexpr uint32_t kLeastPerCall = 8;
constexpr int64_t kCoolest = 1024, kWarmest = 32;  // a chain accepts plans worse by 1 / this with probability 1/2

constexpr auto kBetweenChecks = std::chrono::milliseconds(50);

constexpr Refusal refuse("plan");

// Calls the caller's check, which may throw, from time to time.
class Checks {
 public:
  explicit Checks(const std::function<void()>& check) : check_(check) {}
  void at(Clock::time_point now) {
    if (!check_ || now < next_) return;
    next_ = now + kBetweenChecks;
    check_();
  }

 private:
  const std::function<void()>& check_;
  Clock::time_point next_ = Clock::now() + kBetweenChecks;
};

class Chain {
 public:
  Chain(const PlanGraph& graph, ListScheduler& scheduler, const PlanSearch::Settings& settings, Checks& checks,
        uint32_t number)
      : graph_(graph),
        scheduler_(scheduler),
        settings_(settings),
        checks_(checks),
        random_(settings.seed * 1000003 + number) {
    for (uint32_t node = 0; node < graph.nodes.size(); ++node) {
      if (graph.nodes[node].options.size() > 1) choices_.push_back(node);
      if (graph.nodes[node].call && settings.levels) leveled_.push_back(node);
    }
    coolness_ = std::min(kCoolest, kWarmest << (number % 6));
  }

  ExecutionPlan anything() {
    ExecutionPlan plan{std::vector<uint32_t>(graph_.nodes.size(), 0), {}, PlanOrder::Critical, {}};
    for (const auto node : choices_) plan.options[node] = below(graph_.nodes[node].options.size());
    return plan;
  }

  // Walks from a plan until nothing better was found for half of the evaluations, then tries all single changes.
  void walk(ExecutionPlan start, Clock::time_point deadline) {
    deadline_ = deadline;
    current_ = std::move(start);
    current_.order = PlanOrder::Critical;
    if (current_.levels.empty()) current_.levels.assign(graph_.nodes.size(), 0);
    current_cost_ = best_cost_ = first_ = evaluate(current_);
    best_ = current_;
    const uint64_t calls = std::max(choices_.size(), leveled_.size());
    const uint64_t least = kLeast + kLeastPerCall * calls;
    uint64_t improved = 0;
    while (calls != 0 && !over() && (evaluations_ < least || evaluations_ < 2 * improved)) {
      step();
      if (best_cost_ < last_best_) improved = evaluations_;
      last_best_ = best_cost_;
    }
    if (!over()) descend();
  }

  const ExecutionPlan& best() const { return best_; }
  int64_t cost() const { return best_cost_; }
  uint64_t evaluations() const { return evaluations_; }
  bool timed_out() const { return timed_out_; }

 private:
  // The remainder is not uniform, by less than 2^-40: all libraries agree on it, unlike on distributions.
  uint32_t below(std::size_t limit) { return static_cast<uint32_t>(random_() % limit); }

  int64_t evaluate(const ExecutionPlan& plan) {
    ++evaluations_;
    return scheduler_.cost(plan);
  }

  bool over() {
    const auto now = Clock::now();
    checks_.at(now);
    timed_out_ = timed_out_ || now >= deadline_;
    return timed_out_ || (settings_.most != 0 && evaluations_ >= settings_.most);
  }

  void change(ExecutionPlan& plan) {
    const bool option = leveled_.empty() || (!choices_.empty() && below(4) != 0);
    if (option) {
      const auto node = choices_[below(choices_.size())];
      const auto count = graph_.nodes[node].options.size();
      plan.options[node] = static_cast<uint32_t>((plan.options[node] + 1 + below(count - 1)) % count);
    } else {
      const auto node = leveled_[below(leveled_.size())];
      plan.levels[node] = static_cast<int8_t>((plan.levels[node] + 2 + static_cast<int>(below(2))) % 3 - 1);
    }
  }

  void step() {
    auto plan = current_;
    change(plan);
    if (below(4) == 0) change(plan);
    const int64_t cost = evaluate(plan);
    if (cost < best_cost_) best_ = plan, best_cost_ = cost;
    if (!accepts(cost)) return;
    current_ = std::move(plan);
    current_cost_ = cost;
  }

  // Metropolis: with probability 2^-(loss * coolness / cost of the first plan), in whole numbers.
  bool accepts(int64_t cost) {
    const int64_t loss = cost - current_cost_;
    if (loss <= 0) return true;
    const int64_t random = static_cast<int64_t>(random_() >> 32) + 1;  // 1 to 2^32
    const int64_t bits = (int64_t{32} << 16) - fixed_log2(random);
    return (Wide{loss} * coolness_ << 16) <= Wide{first_} * bits;
  }

  void descend() {
    for (bool better = true; better;) {
      better = false;
      for (const auto node : choices_) {
        for (uint32_t option = 0; option < graph_.nodes[node].options.size(); ++option) {
          if (over()) return;
          auto plan = best_;
          plan.options[node] = option;
          better = keep(std::move(plan)) || better;
        }
      }
    }
  }

  bool keep(ExecutionPlan plan) {
    const int64_t cost = evaluate(plan);
    if (cost >= best_cost_) return false;
    best_ = std::move(plan);
    best_cost_ = cost;
    return true;
  }

  const PlanGraph& graph_;
  ListScheduler& scheduler_;
  const PlanSearch::Settings& settings_;
  Checks& checks_;
  std::mt19937_64 random_;
  std::vector<uint32_t> choices_, leveled_;
  int64_t coolness_ = kWarmest;
  ExecutionPlan current_, best_;
  int64_t first_ = 0, current_cost_ = 0, best_cost_ = 0, last_best_ = 0;
  uint64_t evaluations_ = 0;
  Clock::time_point deadline_;
  bool timed_out_ = false;
};

}  // namespace

std::vector<uint32_t> fastest_options(ListScheduler& scheduler, const PlanGraph& graph) {
  std::vector<uint32_t> fastest;
  for (uint32_t node = 0; node < graph.nodes.size(); ++node) {
    uint32_t best = 0;
    for (uint32_t option = 1; option < graph.nodes[node].options.size(); ++option) {
      if (scheduler.alone(node, option) < scheduler.alone(node, best)) best = option;
    }
    fastest.push_back(best);
  }
  return fastest;
}

PlanSearch PlanSearch::run(const PlanGraph& graph, const Settings& settings) {
  if (settings.chains == 0 || settings.budget < 0) {
    refuse("expected at least one chain, and a budget of 0 ns or more");
  }
  ListScheduler scheduler(graph);
  const auto fastest = fastest_options(scheduler, graph);
  const auto begin = Clock::now();
  Checks checks(settings.check);
  PlanSearch result;
  for (uint32_t number = 0; number < settings.chains; ++number) {
    Chain chain(graph, scheduler, settings, checks, number);
    ExecutionPlan start{fastest, {}, PlanOrder::Critical, {}};
    if (number < settings.starts.size()) {
      start = settings.starts[number];
    } else if (number % 3 == 1) {
      start.options.assign(graph.nodes.size(), 0);
    } else if (number % 3 == 2) {
      start = chain.anything();
    }
    auto deadline = Clock::time_point::max();
    if (settings.budget != 0) {
      const auto left = begin + std::chrono::nanoseconds(settings.budget) - Clock::now();
      deadline = Clock::now() + left / (settings.chains - number);
    }
    chain.walk(std::move(start), deadline);
    result.chains.push_back(chain.cost());
    result.plans.push_back(chain.best());
    result.evaluations += chain.evaluations();
    result.complete = result.complete && !chain.timed_out();
  }
  return result;
}

}  // namespace mcr
