// SPDX-License-Identifier: Apache-2.0
// Groups with a fuse in front of a backend that counts its calls.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "passes/fuse/fuse.h"
#include "ranks.h"

namespace fusing {

using namespace mcr;
using namespace std::chrono_literals;
using Floats = std::vector<float>;
using Shadow = std::shared_ptr<Group>;

inline constexpr auto kNever = std::chrono::hours(1);

inline FuseLimits limits(int64_t buffer, std::chrono::nanoseconds hold = kNever) { return {buffer, hold, buffer}; }

inline std::shared_ptr<Fuse> fuse(Group& group, Shadow shadow, const FuseLimits& limits) {
  const std::string backend = shadow->candidates().front().backend.name;
  auto pass = std::make_shared<Fuse>(std::move(shadow), std::map<std::string, FuseLimits>{{backend, limits}});
  group.set_passes({pass});
  return pass;
}

inline Call call(Op op, Floats& out, int root = 0) {
  Call made;
  made.op = op;
  made.dtype = DType::Float;
  made.out = ranks::buffer(out);
  made.root = root;
  return made;
}

inline Call call(Op op, Floats& in, Floats& out) {
  Call made = call(op, out);
  made.in = ranks::buffer(in);
  return made;
}

// Counts what reaches the backend of a group of one.
class Counter : public Communicator {
 public:
  struct Log {
    std::vector<Call> calls;
    int blocking = 0, fail_after = 1 << 20;  // the number of blocking ones; from this call on, all throw
    bool out_of_memory = false;              // and no Error
    int64_t agreed = 0;                      // the result of a round; 0: this rank's own number
  };
  explicit Counter(Log& log) : log_(log) {}
  bool supports(const Call&) const override { return true; }
  void issue(const Call& call, Lane& lane) override {
    if (lane.blocking()) ++log_.blocking;
    const bool fails = std::cmp_greater_equal(log_.calls.size(), log_.fail_after);
    if (fails && log_.out_of_memory) throw std::bad_alloc();
    if (fails) throw Error(ErrorCode::Backend, "out of order");
    log_.calls.push_back(call);
    if (log_.agreed != 0 && call.dtype == DType::Long) *static_cast<int64_t*>(call.out.data) = log_.agreed;
  }

 private:
  Log& log_;
};

// Counts the calls that go through.
struct Sees : Pass {
  std::string_view name() const override { return "sees"; }
  Outcome handle(Passage& passage, const Next& next) override {
    CHECK(passage.call.dtype == DType::Float);
    ++calls;
    return next(passage);
  }
  std::atomic<int> calls{0};
};

struct One {
  Counter::Log log, fused;
  ranks::Alone alone{[this] { return std::make_unique<Counter>(log); }};
  std::shared_ptr<ranks::Alone> shadow =
      std::make_shared<ranks::Alone>([this] { return std::make_unique<Counter>(fused); });
  std::shared_ptr<Fuse> pass;
  explicit One(const FuseLimits& limits) : pass(fuse(alone.group(), {shadow, &shadow->group()}, limits)) {}
  std::shared_ptr<Work> start(const Call& call) { return works.emplace_back(ranks::start(alone.group(), call)); }
  bool finish() {
    return pass->synchronize(10s) && std::ranges::all_of(works, [](const auto& work) { return work->wait_for(10s); });
  }
  std::vector<std::shared_ptr<Work>> works;
};

}  // namespace fusing
