// SPDX-License-Identifier: Apache-2.0
#include "interpreter.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "base/reduce.h"

namespace interpreter {

namespace {

using namespace mcr;

using Bytes = std::vector<std::byte>;

class Collective {
 public:
  explicit Collective(const std::vector<Call>& calls) : calls_(calls), size_(static_cast<int>(calls.size())) {}

  void perform() {
    const OpRow& op = row(first().op);
    if (op.extent == Extent::None) return;
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < size_; ++rank) inputs.push_back(content(input(rank)));
    if (op.is(kReduces)) inputs.assign(calls_.size(), folded(inputs));
    for (int rank = 0; rank < size_; ++rank) {
      if (op.is(kRooted) && op.is(kReduces) && rank != first().root) continue;
      if (first().op == Op::gather && rank != first().root) continue;
      deliver(rank, inputs);
    }
  }

 private:
  const Call& first() const { return calls_[0]; }
  const Call& call(int rank) const { return calls_[static_cast<std::size_t>(rank)]; }
  std::size_t bytes(int64_t count) const { return static_cast<std::size_t>(count * size_of(first().dtype)); }

  const Buffer& input(int rank) const {
    return row(first().op).extent == Extent::Same ? call(rank).out : call(rank).in;
  }
  Bytes content(const Buffer& buffer) const {
    const auto* data = static_cast<const std::byte*>(buffer.data);
    return buffer.data == nullptr ? Bytes() : Bytes(data, data + bytes(buffer.count));
  }

  Bytes folded(const std::vector<Bytes>& inputs) const {
    Bytes sum = inputs[0];
    const auto count = static_cast<int64_t>(sum.size()) / size_of(first().dtype);
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      combine(sum.data(), inputs[i].data(), count, first().dtype, first().red);
    }
    return sum;
  }

  // Where block `i` lies in a buffer that has one per rank, and how many elements it has.
  std::pair<int64_t, int64_t> place(const Buffer& whole, std::span<const int64_t> counts,
                                    std::span<const int64_t> displs, int i) const {
    const auto index = static_cast<std::size_t>(i);
    if (first().vectored) return {displs[index], counts[index]};
    return {whole.count / size_ * i, whole.count / size_};
  }
  std::pair<int64_t, int64_t> in_place(int rank, int i) const {
    return place(call(rank).in, call(rank).in_counts, call(rank).in_displs, i);
  }
  std::pair<int64_t, int64_t> out_place(int rank, int i) const {
    return place(call(rank).out, call(rank).out_counts, call(rank).out_displs, i);
  }

  void write(int rank, int64_t at, const Bytes& from, int64_t offset, int64_t count) const {
    if (count == 0) return;
    std::memcpy(static_cast<std::byte*>(call(rank).out.data) + bytes(at), from.data() + bytes(offset), bytes(count));
  }

  void deliver(int rank, const std::vector<Bytes>& inputs) const {
    const auto of = [&](int other) -> const Bytes& { return inputs[static_cast<std::size_t>(other)]; };
    switch (row(first().op).extent) {
      case Extent::None:
        return;
      case Extent::Same:
        return write(rank, 0, of(first().op == Op::broadcast ? first().root : rank), 0, call(rank).out.count);
      case Extent::Gather:
        for (int i = 0; i < size_; ++i) {
          const auto [at, count] = out_place(rank, i);
          write(rank, at, of(i), 0, count);
        }
        return;
      case Extent::Scatter: {
        const int source = row(first().op).is(kRooted) ? first().root : rank;
        const auto [at, count] = in_place(source, rank);
        return write(rank, 0, of(source), at, count);
      }
      case Extent::Exchange:
        for (int i = 0; i < size_; ++i) {
          const auto [from, count] = in_place(i, rank);
          write(rank, out_place(rank, i).first, of(i), from, count);
        }
        return;
    }
  }

  const std::vector<Call>& calls_;
  int size_;
};

class Run {
 public:
  Run(std::span<Schedule> schedules, uint32_t seed, Members members) : generator_(seed), members_(std::move(members)) {
    for (auto& schedule : schedules) {
      ranks_.push_back({&schedule, std::vector<State>(schedule.tasks().size(), State::Waiting), {}, 0});
    }
  }

  std::string go() {
    while (problem_.empty()) {
      const auto ready = candidates();
      const auto choices = ready.size() + met_.size();
      if (choices == 0) break;
      const auto choice = std::uniform_int_distribution<std::size_t>(0, choices - 1)(generator_);
      if (choice < ready.size()) {
        advance(ready[choice].first, ready[choice].second);
      } else {
        perform_met(choice - ready.size());
      }
    }
    if (!problem_.empty()) return problem_;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const auto& states = ranks_[rank].states;
      const auto stuck = std::find_if(states.begin(), states.end(), [](State state) { return state != State::Done; });
      if (stuck != states.end()) {
        return "rank " + std::to_string(rank) + ": task " + std::to_string(stuck - states.begin()) + " never ends";
      }
    }
    return "";
  }

 private:
  enum class State : uint8_t { Waiting, Issued, Done };
  // A communicator: the part, whether it is that of late Issues, and its ranks.
  struct Channel {
    int part;
    bool late;
    std::vector<int> ranks;
    auto operator<=>(const Channel&) const = default;
  };
  struct Rank {
    Schedule* schedule;
    std::vector<State> states;
    std::map<Channel, std::deque<uint32_t>> collectives;  // issued and not done
    uint32_t first = 0;                                   // no task before it waits
  };
  // Between two ranks, in one direction: those that have no partner yet.
  struct Wire {
    std::deque<uint32_t> sends, receives;
  };

  const Task& task(std::size_t rank, uint32_t id) const { return ranks_[rank].schedule->tasks()[id]; }
  Channel channel(std::size_t rank, uint32_t id) const {
    const Task& one = task(rank, id);
    if (members_ != nullptr) return {one.part, false, members_(static_cast<int>(rank), one.part)};
    std::vector<int> all(ranks_.size());
    std::iota(all.begin(), all.end(), 0);
    return {one.part, one.late, all};
  }

  // Every task that could run next. Issues on one communicator keep their order on each rank.
  std::vector<std::pair<std::size_t, uint32_t>> candidates() {
    std::vector<std::pair<std::size_t, uint32_t>> found;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      std::set<Channel> issued;
      std::set<std::pair<int, bool>> waiting;  // the part, with members of any part, and whether it is late
      auto& [schedule, states, collectives, first] = ranks_[rank];
      while (first < states.size() && states[first] != State::Waiting) ++first;
      for (uint32_t id = first; id < states.size(); ++id) {
        if (states[id] != State::Waiting) continue;
        const bool issue = task(rank, id).kind == Task::Kind::Issue;
        const int part = members_ == nullptr ? task(rank, id).part : 0;
        if (issue && !waiting.emplace(part, task(rank, id).late).second) continue;
        if (!ready(rank, id)) continue;
        if (!issue || issued.insert(channel(rank, id)).second) found.emplace_back(rank, id);
      }
    }
    return found;
  }

  bool ready(std::size_t rank, uint32_t id) const {
    const auto& before = ranks_[rank].schedule->after(task(rank, id));
    return std::all_of(before.begin(), before.end(),
                       [&](uint32_t one) { return ranks_[rank].states[one] == State::Done; });
  }

  void advance(std::size_t rank, uint32_t id) {
    const Task& one = task(rank, id);
    if (one.kind == Task::Kind::Wait) {
      if (ranks_[rank].schedule->poll(id)) ranks_[rank].states[id] = State::Done;
      return;
    }
    if (one.kind != Task::Kind::Issue) {
      ranks_[rank].schedule->compute(id);
      ranks_[rank].states[id] = State::Done;
      return;
    }
    ranks_[rank].states[id] = State::Issued;
    if (!row(one.call.op).is(kPeer)) {
      const auto where = channel(rank, id);
      if (std::ranges::find(where.ranks, static_cast<int>(rank)) == where.ranks.end()) {
        problem_ = "rank " + std::to_string(rank) + " issues on a communicator of others";
        return;
      }
      ranks_[rank].collectives[where].push_back(id);
      return meet(where);
    }
    const auto peer = static_cast<std::size_t>(one.call.root);
    const bool sends = one.call.op == Op::send;
    auto& wire = messages_[{channel(rank, id), sends ? rank : peer, sends ? peer : rank}];
    (sends ? wire.sends : wire.receives).push_back(id);
    while (!wire.sends.empty() && !wire.receives.empty()) {
      transfer(sends ? rank : peer, wire.sends.front(), sends ? peer : rank, wire.receives.front());
      wire.sends.pop_front();
      wire.receives.pop_front();
    }
  }

  void transfer(std::size_t from, uint32_t sent, std::size_t to, uint32_t received) {
    const auto& out = task(from, sent).call.out;
    const auto& in = task(to, received).call.out;
    if (out.count != in.count) {
      problem_ = "rank " + std::to_string(to) + " expects " + std::to_string(in.count) + " elements from rank " +
                 std::to_string(from) + ", which sends " + std::to_string(out.count);
      return;
    }
    std::memcpy(in.data, out.data, static_cast<std::size_t>(in.count * size_of(task(to, received).call.dtype)));
    ranks_[from].states[sent] = ranks_[to].states[received] = State::Done;
  }

  // Collectives of a communicator match in the order in which each rank has issued them. They are performed later and
  // in any order: a started one is over when the library says so.
  void meet(const Channel& channel) {
    std::vector<std::deque<uint32_t>*> issued;
    for (const int rank : channel.ranks) {
      issued.push_back(&ranks_[static_cast<std::size_t>(rank)].collectives[channel]);
      if (issued.back()->empty()) return;
    }
    auto& ids = met_.emplace_back(Met{channel.ranks, {}}).ids;
    for (auto* const one : issued) {
      ids.push_back(one->front());
      one->pop_front();
    }
  }

  void perform_met(std::size_t index) {
    std::vector<Call> calls;
    const auto met = met_[index];
    for (std::size_t i = 0; i < met.ranks.size(); ++i) {
      const auto rank = static_cast<std::size_t>(met.ranks[i]);
      calls.push_back(task(rank, met.ids[i]).call);
      ranks_[rank].states[met.ids[i]] = State::Done;
    }
    met_.erase(met_.begin() + static_cast<std::ptrdiff_t>(index));
    for (const auto& call : calls) {
      const bool alike = call.op == calls[0].op && call.dtype == calls[0].dtype && call.red == calls[0].red &&
                         call.root == calls[0].root;
      if (!alike) {
        problem_ = "the ranks issue different collectives";
        return;
      }
    }
    perform(calls);
  }

  std::mt19937 generator_;
  const Members members_;  // null: all ranks, and late Issues have their own communicator
  std::vector<Rank> ranks_;
  std::map<std::tuple<Channel, std::size_t, std::size_t>, Wire> messages_;
  // A collective that all ranks of a communicator have issued, and its task on each of them.
  struct Met {
    std::vector<int> ranks;
    std::vector<uint32_t> ids;
  };
  std::vector<Met> met_;
  std::string problem_;
};

}  // namespace

void perform(const std::vector<Call>& calls) { Collective(calls).perform(); }

std::string run(std::span<Schedule> schedules, uint32_t seed) { return run(schedules, seed, nullptr); }

std::string run(std::span<Schedule> schedules, uint32_t seed, const Members& members) {
  return Run(schedules, seed, members).go();
}

}  // namespace interpreter
