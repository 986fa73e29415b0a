// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "check.h"
#include "engine/hierarchical.h"
#include "engine/stage.h"
#include "ranks.h"

using namespace std::chrono_literals;

namespace {

using namespace mcr;
using Floats = std::vector<float>;

// A library whose operations end when a test says so: they copy the input to the output, or fail.
class Scripted : public Communicator {
 public:
  struct Script {
    std::vector<Call> calls;
    std::atomic<int> polls = 0;
    std::atomic<bool> refuses = false, fails = false, ends = false;
    bool integers = false;  // it reduces these alone
    int patience = 1;
  };
  explicit Scripted(Script& script) : script_(script) {}
  bool supports(const Call& call) const override { return !script_.integers || call.dtype == DType::Int; }
  int patience() const override { return script_.patience; }
  void issue(const Call& call, Lane& lane) override {
    CHECK(!lane.blocking() && call.variant == 0);
    if (script_.refuses) throw Error(ErrorCode::Backend, "not today");
    script_.calls.push_back(call);
    lane.track(std::make_unique<Running>(script_, call));
  }

 private:
  class Running : public Request {
   public:
    Running(Script& script, const Call& call) : script_(script), call_(call) {}
    bool poll() override {
      ++script_.polls;
      if (!script_.ends) return false;
      if (script_.fails) throw Error(ErrorCode::Backend, "cable cut");
      const auto bytes = static_cast<std::size_t>(std::min(call_.in.count, call_.out.count)) * sizeof(float);
      if (bytes > 0) std::memcpy(call_.out.data, call_.in.data, bytes);
      return true;
    }

   private:
    Script& script_;
    const Call call_;
  };

  Script& script_;
};

// A group of two ranks with two libraries, and both at once.
struct Two {
  Scripted::Script left, right;
  Registry::Entry first, second;
  Group group{ranks::spec(2, 0)};

  explicit Two(bool integers = false, int patience = 1) {
    left.integers = right.integers = integers;
    right.patience = patience;
    first.name = "left";
    first.backend = std::make_unique<ranks::MadeBackend>([this] { return std::make_unique<Scripted>(left); });
    second.name = "right";
    second.backend = std::make_unique<ranks::MadeBackend>([this] { return std::make_unique<Scripted>(right); });
    group.connect(first, 0);
    group.connect(second, 0);
    connect_striped(group, "left", "right");
  }
  // The progress thread of `stripe(left,right)`, which outlives this, must not look at the scripts any more.
  ~Two() {
    end();
    auto& progress = striped().progress;
    CHECK(progress.drain(std::chrono::seconds(60)));
    const auto runs = [](const Work& work) { return !work.finished(); };  // also after an error, which ends a drain
    while (!progress.watched(1, runs).empty()) std::this_thread::yield();
  }
  Two(const Two&) = delete;
  Two& operator=(const Two&) = delete;
  std::size_t candidates() {
    return static_cast<std::size_t>(
        std::ranges::count_if(group.candidates(), [](const auto& candidate) { return candidate.striped != nullptr; }));
  }
  static Registry::Entry& striped() { return add_striped("left", "right"); }
  std::shared_ptr<Work> start(const Call& call, const char* candidate = "stripe(left,right)") {
    return ranks::start(group, call, group.find(candidate));
  }
  void end() {
    left.ends = true;
    right.ends = true;
  }
};

// Polls until the end, which the test's time limit bounds: while the progress thread polls a Work, other polls say no.
bool ends(const std::shared_ptr<Work>& work) {
  while (!work->poll()) std::this_thread::yield();
  return true;
}

Call make(Op op, Floats& in, Floats& out) {
  Call call;
  call.op = op;
  call.dtype = DType::Float;
  if (!in.empty()) call.in = ranks::buffer(in);
  call.out = ranks::buffer(out);
  return call;
}

Call all_reduce(Floats& data) {
  Floats none;
  return make(Op::all_reduce, none, data);
}

Floats counted(std::size_t size) {
  Floats values(size);
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

}  // namespace

TEST(a_message_is_cut_by_the_variants_share) {
  const std::vector<std::pair<const char*, int64_t>> shares = {
      {"stripe(left,right)", 49984}, {"stripe(left,right,25)", 24960}, {"stripe(left,right,40)", 40000},
      {"left+right:40", 40000},      {"stripe(left,right,67)", 66944}, {"stripe(left,right,75)", 74944}};
  for (const auto& [name, cut] : shares) {
    Two two;
    Floats data(100'000);
    const auto work = two.start(all_reduce(data), name);
    CHECK(two.left.calls.size() == 1 && two.right.calls.size() == 1);
    CHECK(two.left.calls[0].out.count == cut && two.right.calls[0].out.count == 100'000 - cut);
    CHECK(two.left.calls[0].out.data == data.data() && two.right.calls[0].out.data == data.data() + cut);
    CHECK(!work->poll());
    two.end();
    CHECK(ends(work));
  }
}

TEST(every_spelling_finds_the_same_candidate) {
  Two two;
  two.end();
  const std::vector<std::pair<const char*, const char*>> same = {
      {"left+right", "stripe(left,right)"},
      {"left+right:67", "stripe(left,right,67)"},
      {"stripe( left, right, 67 )", "stripe(left,right,67)"}};
  for (const auto& [old, name] : same) {
    CHECK(two.group.find(old) != nullptr && two.group.find(old) == two.group.find(name));
    CHECK(two.group.find(name)->name == name);
  }
  for (const char* none : {"left+right:0", "left+right:100", "left+right:4x", "right+left",
                           "stripe(left,right,40)|bf16", "stripe(left,right", "left|bf16", ""}) {
    CHECK(two.group.find(none) == nullptr);
  }
  CHECK(Registry::instance().find("left+right") == &Two::striped());
  two.group.disconnect("left+right:67");
  CHECK(two.candidates() == 4 && two.group.find("left+right:75") != nullptr);
}

TEST(any_share_is_a_candidate) {
  Two two;
  two.end();
  const auto listed = two.candidates();
  for (int percent = 1; percent < 100; ++percent) {
    const auto name = "stripe(left,right," + std::to_string(percent) + ")";
    auto* candidate = two.group.find(name);
    CHECK(candidate != nullptr && candidate == two.group.find("left+right:" + std::to_string(percent)));
    CHECK(candidate->name == name && StripedCommunicator::share_of(candidate->variant) == 10 * percent);
  }
  CHECK(two.candidates() == listed);  // naming one in a call does not make it a candidate of `auto`
  Tuning tuning;
  tuning.rules.push_back({Op::all_reduce, false, 0, Tuning::Rule::kNoEnd, "stripe(left,right,40)"});
  two.group.tune(tuning);
  two.group.tune(tuning);
  CHECK(two.candidates() == listed + 1);
  Floats data(100'000);
  CHECK(two.group.choose(all_reduce(data)).name == "stripe(left,right,40)");
  two.group.disconnect("left+right");
  CHECK(two.group.find("stripe(left,right,40)") == nullptr && two.group.find("left+right:41") == nullptr);
}

TEST(what_is_not_cut_goes_over_the_first) {
  Two two;
  two.end();
  Floats little(100), much(100'000);
  CHECK(ends(two.start(all_reduce(little))));
  Call barrier;
  CHECK(ends(two.start(barrier)));
  Floats result(100'000);
  auto gather = make(Op::gather, much, result);
  gather.root = 1;
  gather.out = {};
  CHECK(ends(two.start(gather)));
  CHECK(two.left.calls.size() == 3 && two.right.calls.empty());
}

TEST(uneven_blocks_are_cut_one_by_one) {
  Two two;
  two.end();
  const std::vector<int64_t> counts = {1000, 90'000}, displs = {90'500, 0};
  Floats in = counted(100'000), out(100'000);
  auto uneven = make(Op::all_to_all, in, out);
  uneven.vectored = true;
  uneven.in_counts = uneven.out_counts = counts;
  uneven.in_displs = uneven.out_displs = displs;
  const auto work = two.start(uneven, "stripe(left,right,25)");  // keeps the counts
  CHECK(ends(work) && two.left.calls.size() == 1 && two.right.calls.size() == 1);
  const auto& left = two.left.calls[0];
  const auto& right = two.right.calls[0];
  CHECK(left.in_counts[0] == 192 && left.in_counts[1] == 22'464 && left.in_displs[0] == 90'500);
  CHECK(right.in_counts[0] == 808 && right.in_displs[0] == 90'692 && right.out_displs[1] == 22'464);
}

TEST(the_parts_costs_decide_about_the_shares) {
  Two two;
  two.end();
  Floats data(1'000'000);
  const auto curve = [](int64_t scale) {
    CostCurve made;
    for (const int64_t bytes : {int64_t{1} << 10, int64_t{1} << 16, int64_t{1} << 20, int64_t{1} << 24})
      made.put({bytes, fixed_log2(bytes * scale)});
    return made;
  };
  Tuning tuning;
  const Tuning::Subject subject{Op::all_reduce, false, false, DeviceType::CPU, DTypeClass::Float};
  tuning.costs.push_back({subject, "left", curve(1)});
  tuning.costs.push_back({subject, "right", curve(3)});
  two.group.tune(tuning);
  CHECK(ends(two.start(all_reduce(data))));
  const auto first = two.left.calls.at(0).out.count;
  CHECK(first > 740'000 && first < 760'000);  // three times as fast: three quarters
  CHECK(ends(two.start(all_reduce(data), "stripe(left,right,25)")));
  CHECK(two.left.calls.at(1).out.count == 249'984);
}

TEST(rows_are_gathered_and_spread) {
  Two two;
  two.end();
  Floats in = counted(80'000), out(80'000);
  CHECK(ends(two.start(make(Op::all_to_all, in, out))));
  CHECK(out == in);
  CHECK(two.left.calls[0].in.count == 2 * 19'968 && two.right.calls[0].out.count == 80'000 - 2 * 19'968);

  Floats part = counted(40'000), all(80'000);
  CHECK(ends(two.start(make(Op::all_gather, part, all))));
  CHECK(std::equal(part.begin(), part.end(), all.begin()));
  CHECK(two.left.calls[1].in.data == part.data());

  std::fill(part.begin(), part.end(), 0.0F);
  CHECK(ends(two.start(make(Op::reduce_scatter, in, part))));
  CHECK(std::equal(part.begin(), part.end(), in.begin()));
  CHECK(two.left.calls[2].out.data == part.data());
}

TEST(both_libraries_move_while_one_is_waited_for) {
  Two two;
  Floats data(100'000);
  const auto work = two.start(all_reduce(data));
  const int before = two.right.polls;
  // A poll does nothing while the progress thread makes one.
  for (const auto begin = std::chrono::steady_clock::now();
       two.right.polls == before && std::chrono::steady_clock::now() < begin + 10s;)
    work->poll();
  CHECK(two.right.polls > before);
  two.end();
  ranks::run(two.group, all_reduce(data),
             two.group.find("stripe(left,right)"));  // blocking calls are started and polled
  CHECK(two.left.calls.size() == 2 && two.right.calls.size() == 2);
}

TEST(the_error_of_one_piece) {
  for (const bool first : {true, false}) {
    Two two;
    auto& broken = first ? two.left : two.right;
    auto& sound = first ? two.right : two.left;
    Floats in = counted(80'000), out(80'000);
    const auto work = two.start(make(Op::all_to_all, in, out));
    broken.fails = true;
    broken.ends = true;
    CHECK(work->wait_for(10s) && work->failed() && !work->finished());
    sound.ends = true;
    while (!work->finished()) work->poll();
    const auto got = ranks::failure([&] { work->rethrow(); });
    CHECK(check::has(got.text, "stripe(left,right).all_to_all", "cable cut"));
  }
}

TEST(a_piece_that_cannot_be_started) {
  Two two;
  two.right.refuses = true;
  Floats data(100'000);
  const auto got = ranks::failure([&] { two.start(all_reduce(data)); });
  CHECK(check::has(got.text, "stripe(left,right).all_reduce", "not today"));
  two.end();  // the other one is still looked after
  CHECK(Two::striped().progress.drain(std::chrono::seconds(60)));
}

TEST(a_first_piece_that_is_refused_leaves_the_numbers) {
  Two two(true);
  two.left.refuses = true;
  for (const auto red : {RedOp::MIN, RedOp::MAX}) {
    Floats data = counted(100'000);
    auto call = all_reduce(data);
    call.red = red;
    const auto got = ranks::failure([&] { two.start(call); });
    CHECK(check::has(got.text, "stripe(left,right).all_reduce", "not today") && data == counted(100'000));
  }
  CHECK(two.right.calls.empty());
}

TEST(the_naps_are_those_of_the_more_patient_part) {
  for (const int patience : {1, 4}) {
    Two two(false, patience);
    CHECK(two.group.find("stripe(left,right)")->communicator->patience() == patience);
  }
}

TEST(the_naps_are_those_of_the_most_patient_dimension) {
  const auto& name = add_over_dimensions("hier", {"left", "right"}).name;
  for (const bool whole : {false, true}) {
    Two two(false, whole ? 4 : 1);
    const auto line = std::make_shared<Two>(false, whole ? 1 : 4);
    LineParts parts;
    parts[Lines::kFirst] = {std::shared_ptr<Group>(line, &line->group), "right"};
    connect_hierarchy(two.group, name, {{0, 1}, {2, 3}}, parts);
    CHECK(two.group.find(name)->communicator->patience() == 4);
  }
}

TEST(all_parts_must_move_data) {
  const auto none = [] { return std::unique_ptr<Communicator>(); };
  for (const bool moves : {false, true}) {
    Registry::instance().add(moves ? "moving" : "idle", std::make_unique<ranks::MadeBackend>(none, moves));
  }
  CHECK(add_striped("moving", "moved").backend->moves_data());
  CHECK(!add_striped("moving", "idle").backend->moves_data() && !add_striped("idle", "moving").backend->moves_data());
  CHECK(add_over_dimensions("hier", {"moving", "moved"}).backend->moves_data());
  CHECK(!add_over_dimensions("hier", {"idle", "moving"}).backend->moves_data());
}

TEST(its_parts_must_be_there) {
  Group group(ranks::spec(2, 0));
  const auto got = ranks::failure([&] { connect_striped(group, "left", "right"); });
  CHECK(got.code == ErrorCode::InvalidArgument && check::has(got.text, "expected left among the backends"));
}

// Otherwise the ranks would issue them on it in different orders.
TEST(late_issues_of_backends_that_share_a_communicator_have_one_order) {
  struct Flag final : Request {
    explicit Flag(const std::atomic<bool>& its) : done(its) {}
    bool poll() override { return done; }
    const std::atomic<bool>& done;
  };
  Two two;
  const auto late = std::make_shared<Two>();
  Stage stage{std::shared_ptr<Group>(late, &late->group)};
  Floats data(8);
  std::array<std::atomic<bool>, 2> done{false, false};
  std::array<std::unique_ptr<Request>, 2> requests;
  const auto submit = [&](std::size_t i, const char* backend, int64_t count) {
    auto call = all_reduce(data);
    call.out.count = count;
    Extras extras;
    const Passage passage{two.group, two.group.find(backend), call, extras, true};
    const auto schedule = Schedule::make();
    schedule->issue(call, {schedule->issue(call)});
    requests[i] = stage.submit(passage, schedule, [&, i](const Task&, Requests& started) {
      started.push_back(std::make_unique<Flag>(done[i]));
    });
  };
  const auto ended = [&] {
    bool all = true;
    for (const auto& request : requests) all = request->poll() && all;
    return all;
  };
  submit(0, "left", 4);
  submit(1, "stripe(left,right)", 8);
  done[1] = true;
  CHECK(!ended() && !ended() && late->left.calls.empty());
  done[0] = true;
  CHECK(!ended() && !ended() && late->left.calls.size() == 2);
  CHECK(late->left.calls[0].out.count == 4 && late->left.calls[1].out.count == 8 && late->right.calls.empty());
  CHECK(stage.statistics().at("left").delays.issues == 2 && stage.statistics().at("right").delays.issues == 2);
  late->end();
  while (!ended()) std::this_thread::yield();
}
