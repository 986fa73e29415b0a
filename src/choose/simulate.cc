// SPDX-License-Identifier: Apache-2.0
#include "choose/simulate.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "choose/refuse.h"

namespace mcr {

namespace {

__extension__ using Wide = __int128;  // for products of times and shares

// Internal times have 16 fractional bits. They are rounded up at each step and down at the end: results are exact as
// long as fewer than 2^16 roundings add up.
constexpr int kFraction = 16;
constexpr int64_t kLatest = std::numeric_limits<int64_t>::max() >> 2;

constexpr int64_t ticks(int64_t ns) { return ns << kFraction; }
constexpr int64_t ns(int64_t ticks) { return ticks >> kFraction; }

int64_t divide_up(Wide value, int64_t by) { return static_cast<int64_t>((value + by - 1) / by); }

constexpr Refusal refuse("simulate");

// The cost of a task that is not a Wait, and the size by which it is looked up.
std::pair<const Cost*, int64_t> cost_of(const Job& job, const Task& task, const CostModel& model, const World& world) {
  std::string_view name;
  std::size_t ranks = 1;
  if (task.kind == Task::Kind::Issue) {
    name = job.parts[task.part].candidate;
    ranks = world.groups[job.parts[task.part].group].size();
  } else if (task.kind == Task::Kind::Encode || task.kind == Task::Kind::Decode) {
    name = job.codec;
  }
  return {&model.cost(task, name), CostModel::bytes(task, static_cast<int>(ranks))};
}

class Simulator {
 public:
  Simulator(std::span<const Job> jobs, const CostModel& model, const World& world)
      : jobs_(jobs), model_(model), world_(world) {
    if (world_.together) check_groups();
    for (uint32_t job = 0; job < jobs_.size(); ++job) check(job);
    for (uint32_t job = 0; job < jobs_.size(); ++job) add(job);
  }

  Simulation run() {
    for (uint32_t job = 0; job < jobs_.size(); ++job) {
      if (--jobs_left_[job].first == 0) release(job);
    }
    while (process()) advance();
    for (const auto& node : nodes_) {
      if (node.state != State::Done) never_ends(node);
    }
    return result();
  }

 private:
  using Index = uint32_t;
  enum class State : uint8_t { Blocked, Waiting, Issued, Done };

  struct Node {
    uint32_t job, task;
    State state = State::Blocked;
    uint32_t before = 0;  // predecessors that have not ended
    std::vector<Index> successors = {};
    const Cost* cost = nullptr;  // null for a Wait
    int64_t bytes = 0, time = 0;
    int64_t ready = 0, issued = 0, start = 0, end = 0;
    std::deque<Index>* channel = nullptr;  // for an Issue that has to keep its order
  };
  // One resource of one rank, or of all.
  struct Holder {
    uint32_t resource;
    int32_t in_flight = 0;
    int64_t load = 0;
  };
  // A joint activity of several nodes (a message, a collective), or of a single node.
  struct Activity {
    std::vector<Index> members;
    std::vector<std::pair<std::size_t, int32_t>> uses = {};  // holder, share
    bool works = false;                                      // past its latency
    int64_t until = 0;                                       // end of the latency
    int64_t left = 0;                                        // ticks of work
    int64_t slow = 1, fast = 1;                              // it works `fast` of every `slow` ticks
  };
  using Communicator = std::tuple<uint32_t, std::string, bool>;  // group, candidate, whether it is the stage's
  using Key = std::tuple<int64_t, int64_t, uint32_t, uint32_t, Index>;
  // Members that have issued a collective, or one side of a message, in order.
  using Issued = std::map<int, std::deque<Index>>;

  const Task& task(const Node& node) const { return jobs_[node.job].schedule->tasks()[node.task]; }
  bool is_issue(const Node& node) const {
    return jobs_[node.job].schedule != nullptr && task(node).kind == Task::Kind::Issue;
  }
  const Job::Part& part(const Node& node) const { return jobs_[node.job].parts[task(node).part]; }
  const std::vector<int>& group(const Node& node) const { return world_.groups[part(node).group]; }
  Communicator communicator(const Node& node) const {
    return {part(node).group, part(node).candidate, task(node).late};
  }
  std::string name(const Node& node) const {
    return "rank " + std::to_string(jobs_[node.job].rank) + ": task " + std::to_string(node.task) + " of job " +
           std::to_string(node.job);
  }

  // ---- the jobs as nodes

  void check_groups() const {
    for (std::size_t index = 0; index < world_.groups.size(); ++index) {
      auto members = world_.groups[index];
      std::ranges::sort(members);
      const auto twice = std::ranges::adjacent_find(members);
      if (twice == members.end()) continue;
      refuse("group " + std::to_string(index) + ": expected each rank once, got rank " + std::to_string(*twice) +
             " twice");
    }
  }

  void check(uint32_t index) const {
    const auto& job = jobs_[index];
    const std::string name = "job " + std::to_string(index);
    if (job.rank < 0) refuse(name + ": expected a rank, got " + std::to_string(job.rank));
    for (const auto before : job.after) {
      if (before >= index) refuse(name + ": expected to begin after an earlier job, got " + std::to_string(before));
    }
    if (job.schedule == nullptr) return model_.check("work of " + name, job.work);
    for (const auto& task : job.schedule->tasks()) {
      if (task.kind != Task::Kind::Issue) continue;
      if (task.part >= job.parts.size() || job.parts[task.part].group >= world_.groups.size()) {
        refuse(name + ": expected a candidate and its group for part " + std::to_string(task.part));
      }
      const auto& members = world_.groups[job.parts[task.part].group];
      if (world_.together && std::find(members.begin(), members.end(), job.rank) == members.end()) {
        refuse(name + ": expected a member of the group of part " + std::to_string(task.part) + ", got rank " +
               std::to_string(job.rank));
      }
    }
  }

  void add(uint32_t index) {
    const auto& job = jobs_[index];
    first_.push_back(static_cast<Index>(nodes_.size()));
    const std::size_t count = job.schedule == nullptr ? 1 : job.schedule->tasks().size();
    jobs_left_.emplace_back(job.after.size() + 1, count);
    followers_.emplace_back();
    for (const auto before : job.after) followers_[before].push_back(index);
    for (uint32_t id = 0; id < count; ++id) {
      Node node{index, id};
      node.before = 1;  // the release of the job
      if (job.schedule == nullptr) {
        node.cost = &job.work;
      } else {
        add_task(node);
      }
      if (node.cost != nullptr) {
        node.time = node.cost->at(node.bytes);
        for (const auto& demand : node.cost->demands) holder(demand.resource, job.rank);
      }
      nodes_.push_back(std::move(node));
    }
  }

  void add_task(Node& node) {
    const auto& job = jobs_[node.job];
    const auto& one = task(node);
    for (const auto before : job.schedule->after(one)) {
      nodes_[first_.back() + before].successors.push_back(static_cast<Index>(nodes_.size()));
      ++node.before;
    }
    if (one.kind == Task::Kind::Wait) return;
    std::tie(node.cost, node.bytes) = cost_of(job, one, model_, world_);
    if (one.kind != Task::Kind::Issue || !world_.in_order) return;
    node.channel = &channels_[{communicator(node), job.rank}];
    node.channel->push_back(static_cast<Index>(nodes_.size()));
  }

  std::size_t holder(uint32_t resource, int rank) {
    const int owner = model_.resources()[resource].scope == Resource::Scope::Rank ? rank : 0;
    const auto [found, made] = numbers_.try_emplace({resource, owner}, holders_.size());
    if (made) holders_.push_back({resource});
    return found->second;
  }

  // ---- tasks that begin and end now

  void become_ready(Index index) {
    auto& node = nodes_[index];
    node.state = State::Waiting;
    node.ready = now_;
    if (node.cost == nullptr) {
      node.issued = node.start = now_;
      return end_of(index);
    }
    const int64_t rank = world_.order == QueueOrder::Arrival    ? 0
                         : world_.order == QueueOrder::Priority ? jobs_[node.job].priority
                                                                : node.time;
    waiting_.insert({rank, node.ready, node.job, node.task, index});
  }

  void end_of(Index index) {
    auto& node = nodes_[index];
    node.state = State::Done;
    node.end = now_;
    if (node.cost != nullptr) {
      for (const auto& demand : node.cost->demands) --holders_[holder(demand.resource, jobs_[node.job].rank)].in_flight;
    }
    for (const auto next : node.successors) {
      if (--nodes_[next].before == 0) become_ready(next);
    }
    if (--jobs_left_[node.job].second == 0) end_job(node.job);
  }

  void end_job(uint32_t job) {
    for (const auto next : followers_[job]) {
      if (--jobs_left_[next].first == 0) release(next);
    }
  }

  void release(uint32_t job) {
    const auto [_, count] = jobs_left_[job];
    if (count == 0) end_job(job);
    for (std::size_t i = 0; i < count; ++i) {
      const auto index = static_cast<Index>(first_[job] + i);
      if (--nodes_[index].before == 0) become_ready(index);
    }
  }

  // Processes everything that happens now; false if nothing is left to wait for.
  bool process() {
    while (admit() || end_activities()) continue;
    return !running_.empty();
  }

  bool end_activities() {
    std::vector<Index> ended;
    std::erase_if(running_, [&](Activity& activity) {
      if (!activity.works && activity.until <= now_) activity.works = true;
      if (!activity.works || activity.left > 0) return false;
      ended.insert(ended.end(), activity.members.begin(), activity.members.end());
      return true;
    });
    for (const auto index : ended) end_of(index);
    return !ended.empty();
  }

  // Starts tasks in the order of the queue. No task overtakes one that waits for the same resource.
  bool admit() {
    bool any = false;
    for (bool changed = true; changed;) {
      changed = false;
      std::set<std::size_t> taken;
      for (auto next = waiting_.begin(); next != waiting_.end();) {
        const auto index = std::get<4>(*next);
        auto& node = nodes_[index];
        const bool turn = node.channel == nullptr || node.channel->front() == index;
        if (turn && room(node, taken)) {
          next = waiting_.erase(next);
          issue(index);
          any = changed = true;
        } else {
          ++next;
        }
      }
    }
    return any;
  }

  bool room(const Node& node, std::set<std::size_t>& taken) {
    bool fits = true;
    for (const auto& demand : node.cost->demands) {
      const auto number = holder(demand.resource, jobs_[node.job].rank);
      const auto& held = holders_[number];
      const auto& resource = model_.resources()[demand.resource];
      const bool full = resource.slots != 0 && held.in_flight >= resource.slots;
      if (full || taken.contains(number)) fits = false;
    }
    if (fits) return true;
    for (const auto& demand : node.cost->demands) taken.insert(holder(demand.resource, jobs_[node.job].rank));
    return false;
  }

  void issue(Index index) {
    auto& node = nodes_[index];
    node.state = State::Issued;
    node.issued = now_;
    if (node.channel != nullptr) node.channel->pop_front();
    for (const auto& demand : node.cost->demands) ++holders_[holder(demand.resource, jobs_[node.job].rank)].in_flight;
    if (!world_.together || !is_issue(node)) return start({index});
    if (row(task(node).call.op).is(kPeer)) return meet_peer(index);
    meet_all(index);
  }

  void meet_peer(Index index) {
    const auto& node = nodes_[index];
    const auto& call = task(node).call;
    const auto& members = group(node);
    if (call.root < 0 || static_cast<std::size_t>(call.root) >= members.size()) {
      refuse(name(node) + ": expected a peer of the group, got " + std::to_string(call.root));
    }
    const int peer = members[static_cast<std::size_t>(call.root)];
    const bool sends = call.op == Op::send;
    const int from = sends ? jobs_[node.job].rank : peer, to = sends ? peer : jobs_[node.job].rank;
    auto& wire = messages_[{communicator(node), from, to}];
    auto &mine = sends ? wire.first : wire.second, &theirs = sends ? wire.second : wire.first;
    mine.push_back(index);
    if (theirs.empty()) return;
    const Index send = wire.first.front(), receive = wire.second.front();
    if (nodes_[send].bytes != nodes_[receive].bytes) {
      refuse(name(nodes_[receive]) + ": expected " + std::to_string(nodes_[receive].bytes) +
             " bytes, as it receives, " + "got " + std::to_string(nodes_[send].bytes) + " from rank " +
             std::to_string(from));
    }
    wire.first.pop_front();
    wire.second.pop_front();
    start({send, receive});
  }

  void meet_all(Index index) {
    auto& issued = collectives_[communicator(nodes_[index])];
    issued[jobs_[nodes_[index].job].rank].push_back(index);
    const auto& members = group(nodes_[index]);
    for (const int rank : members) {
      if (issued[rank].empty()) return;
    }
    std::vector<Index> all;
    for (const int rank : members) {
      all.push_back(issued[rank].front());
      issued[rank].pop_front();
      const auto &one = nodes_[all.front()], &other = nodes_[all.back()];
      if (task(one).call.op != task(other).call.op) {
        refuse(name(other) + ": expected " + std::string(row(task(one).call.op).name) + ", as rank " +
               std::to_string(members.front()) + " issues, got " + std::string(row(task(other).call.op).name));
      }
    }
    start(std::move(all));
  }

  void start(std::vector<Index> members) {
    Activity activity{std::move(members)};
    int64_t latency = 0, total = 0;
    for (const auto index : activity.members) {
      auto& node = nodes_[index];
      node.start = now_;
      latency = std::max(latency, std::min(node.cost->latency, node.time));
      total = std::max(total, node.time);
      for (const auto& demand : node.cost->demands) {
        if (demand.share != 0) activity.uses.emplace_back(holder(demand.resource, jobs_[node.job].rank), demand.share);
      }
    }
    activity.until = now_ + ticks(latency);
    activity.left = ticks(total - latency);
    running_.push_back(std::move(activity));
  }

  // ---- advancing to the next event

  void advance() {
    set_speeds();
    int64_t next = kLatest;
    for (const auto& activity : running_) {
      const int64_t end =
          activity.works ? now_ + divide_up(Wide{activity.left} * activity.slow, activity.fast) : activity.until;
      next = std::min(next, end);
    }
    if (next >= kLatest) refuse("expected times below 2^45 ns, got longer ones");
    const int64_t passed = next - now_;
    for (auto& activity : running_) {
      if (activity.works) activity.left -= static_cast<int64_t>(Wide{passed} * activity.fast / activity.slow);
    }
    now_ = next;
  }

  // An overloaded resource slows down all of its tasks equally, and a task runs at the speed that the slowest of its
  // resources allows.
  void set_speeds() {
    for (auto& held : holders_) held.load = 0;
    for (const auto& activity : running_) {
      for (const auto& [number, share] : activity.uses) holders_[number].load += activity.works ? share : 0;
    }
    for (auto& activity : running_) {
      activity.slow = activity.fast = 1;
      for (const auto& [number, _] : activity.uses) {
        const int64_t load = holders_[number].load, capacity = model_.resources()[holders_[number].resource].capacity;
        const bool slower = Wide{load} * activity.fast > Wide{capacity} * activity.slow;
        if (slower) activity.slow = load, activity.fast = capacity;
      }
    }
  }

  // ---- the end

  [[noreturn]] void never_ends(const Node& node) const {
    std::string why = "a task before it never ends";
    if (node.state == State::Waiting) why = "it never gets a slot or its turn";
    if (node.state == State::Issued) why = "no partner, or not every rank of its group, issues the same";
    refuse(name(node) + " never ends: " + why);
  }

  Simulation result() const {
    Simulation result;
    result.tasks.resize(jobs_.size());
    result.ends.resize(jobs_.size());
    for (const auto& node : nodes_) {
      result.tasks[node.job].push_back({ns(node.ready), ns(node.issued), ns(node.start), ns(node.end)});
      result.ends[node.job] = std::max(result.ends[node.job], ns(node.end));
      result.end = std::max(result.end, ns(node.end));
    }
    return result;
  }

  std::span<const Job> jobs_;
  const CostModel& model_;
  const World& world_;
  int64_t now_ = 0;
  std::vector<Node> nodes_;
  std::vector<Index> first_;                                    // first node of each job
  std::vector<std::pair<std::size_t, std::size_t>> jobs_left_;  // 1 + the jobs before it; tasks that have not ended
  std::vector<std::vector<uint32_t>> followers_;                // of each job
  std::map<std::pair<Communicator, int>, std::deque<Index>> channels_;  // a rank's Issues, not issued yet
  std::vector<Holder> holders_;
  std::map<std::pair<uint32_t, int>, std::size_t> numbers_;  // indexes of holders, by resource and owner
  std::set<Key> waiting_;
  std::vector<Activity> running_;
  std::map<Communicator, Issued> collectives_;
  std::map<std::tuple<Communicator, int, int>, std::pair<std::deque<Index>, std::deque<Index>>> messages_;
};

}  // namespace

Simulation simulate(std::span<const Job> jobs, const CostModel& model, const World& world) {
  return Simulator(jobs, model, world).run();
}

}  // namespace mcr
