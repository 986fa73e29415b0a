// SPDX-License-Identifier: Apache-2.0
// Simulated times: computed by hand where schedules are small, by their properties where they are not.
#include "choose/simulate.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "algorithms/emulate.h"
#include "base/error.h"
#include "check.h"

namespace {

using namespace mcr;

constexpr int kMostRanks = 9;
constexpr int64_t kMib = int64_t{1} << 20;
constexpr int64_t kPerByte = kMib;  // of Cost::per_mib: one nanosecond for each byte

Call call_of(Op op, int64_t bytes, int peer = 0) {
  Call call;
  call.op = op;
  call.out = {nullptr, bytes};
  call.root = peer;
  return call;
}

Buffer bytes(int64_t count) { return {nullptr, count}; }

Cost cost(int64_t alpha, int64_t per_mib = 0, std::vector<Demand> demands = {}, int64_t latency = 0) {
  return {{}, alpha, per_mib, latency, std::move(demands)};
}

CostModel::Subject issue(Op op, std::string candidate) {
  return {Task::Kind::Issue, op, false, {}, std::move(candidate)};
}

std::vector<int> ranks(int size) {
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

World alone(int size = 2) { return {{ranks(size)}}; }
World together(int size) { return {{ranks(size)}, true}; }

Job job(const Schedule& schedule, int rank = 0) { return {&schedule, rank, {{"x"}, {"y"}}, "codec"}; }

std::string problem(const std::vector<Job>& jobs, const CostModel& model, const World& world) {
  try {
    simulate(jobs, model, world);
  } catch (const Error& error) {
    return error.code() == ErrorCode::InvalidArgument ? error.what() : "";
  }
  return "";
}

// The time of the tasks one after the other, and of the longest chain of them: bounds of one job's time.
struct Bounds {
  int64_t serial = 0, critical = 0;
};

int64_t time_of(const Task& task, const Job& job, const CostModel& model, const World& world) {
  if (task.kind == Task::Kind::Wait) return 0;
  if (task.kind != Task::Kind::Issue) {
    const bool coded = task.kind == Task::Kind::Encode || task.kind == Task::Kind::Decode;
    return model.cost(task, coded ? job.codec : "").at(CostModel::bytes(task, 1));
  }
  const auto& part = job.parts[task.part];
  return model.cost(task, part.candidate).at(CostModel::bytes(task, static_cast<int>(world.groups[part.group].size())));
}

Bounds bounds(const Job& job, const CostModel& model, const World& world) {
  Bounds result;
  std::vector<int64_t> ends;
  for (const auto& task : job.schedule->tasks()) {
    const int64_t time = time_of(task, job, model, world);
    int64_t start = 0;
    for (const auto before : job.schedule->after(task)) start = std::max(start, ends[before]);
    ends.push_back(start + time);
    result.serial += time;
    result.critical = std::max(result.critical, ends.back());
  }
  return result;
}

// Broadcasts on x and y cost a nanosecond for each byte and a slot or share of what is named like the candidate.
CostModel two_links(const Resource& like, int64_t latency = 0) {
  CostModel model;
  for (const std::string name : {"x", "y"}) {
    Resource link = like;
    link.name = name;
    const auto number = model.add(link);
    model.add(issue(Op::broadcast, name), cost(latency, kPerByte, {{number, kUnit}}, latency));
  }
  return model;
}

}  // namespace

TEST(costs_are_whole_numbers) {
  for (const int64_t value : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{1000}, int64_t{123456789}, kMostCost}) {
    const int64_t back = fixed_exp2(fixed_log2(value));
    CHECK(back <= value && value - back <= value / 10000);
    CHECK(fixed_log2(back) == fixed_log2(value));
  }
  CHECK(cost(7, 1000).at(0) == 7);
  CHECK(cost(7, 1000).at(kMib) == 1007);
  CHECK(cost(7, 1000).at(kMib / 2 + 1) == 508);  // rounded up
  CHECK(cost(7, 1000).at(-kMib) == 7);
  CHECK(cost(0, kMostCost).at(int64_t{1} << 62) == kMostCost);
  CHECK(cost(kMostCost, 5).at(kMib) == kMostCost && cost(1, kMostCost).at(kMib) == kMostCost);
  Cost measured = cost(1, 1);
  measured.curve = CostCurve({{1024, fixed_log2(2000)}, {4096, fixed_log2(8000)}});
  CHECK(measured.at(1) == measured.at(1024));
  CHECK(measured.at(2048) >= 3998 && measured.at(2048) <= 4000);
}

TEST(tasks_wait_for_their_predecessors) {
  CostModel model;
  model.add({Task::Kind::Copy}, cost(0, kPerByte));
  model.add({.kind = Task::Kind::Combine, .types = DTypeClass::Integer}, cost(5, 2 * kPerByte));
  model.add({.kind = Task::Kind::Encode, .name = "codec"}, cost(1, kPerByte));
  model.add({.kind = Task::Kind::Decode, .name = "codec"}, cost(2, kPerByte));
  model.add(issue(Op::broadcast, "x"), cost(100));
  const auto nothing = [](Schedule&) {};
  Schedule schedule;
  const auto copied = schedule.copy(bytes(10), bytes(10), DType::Byte);
  Call coded = call_of(Op::all_reduce, 3);  // the operation has no part in the cost
  coded.in = bytes(7);
  const auto encoded = schedule.encode(coded, nothing, {copied});
  const auto sent = schedule.issue(call_of(Op::broadcast, 3), {encoded});
  const auto decoded = schedule.decode(coded, nothing, {sent});
  schedule.combine(bytes(4), bytes(4), DType::Byte, RedOp::SUM, {decoded, copied});
  const auto found = simulate(std::vector{job(schedule)}, model, alone());
  const int64_t ends[] = {10, 18, 118, 123, 136};
  for (std::size_t i = 0; i < 5; ++i) CHECK(found.tasks[0][i].end == ends[i]);
  CHECK(found.tasks[0][4].ready == 123 && found.end == 136 && found.ends[0] == 136);
  const auto limits = bounds(job(schedule), model, alone());
  CHECK(limits.serial == 136 && limits.critical == 136);
}

TEST(tasks_share_or_queue) {
  Schedule schedule;
  for (const int64_t size : {300, 100, 200}) schedule.issue(call_of(Op::broadcast, size));
  const std::vector jobs = {job(schedule)};
  const auto ends = [&](const Resource& link) {
    const auto found = simulate(jobs, two_links(link), alone());
    return std::vector{found.tasks[0][0].end, found.tasks[0][1].end, found.tasks[0][2].end};
  };
  CHECK(ends({.capacity = 3 * kUnit}) == std::vector<int64_t>{300, 100, 200});
  CHECK(ends({}) == std::vector<int64_t>{600, 300, 500});            // a third each, then a half
  CHECK(ends({.slots = 1}) == std::vector<int64_t>{300, 400, 600});  // one after the other
  CHECK(ends({.slots = 2}) == std::vector<int64_t>{600, 200, 600});
}

TEST(latencies_overlap_where_there_are_slots) {
  Schedule schedule;
  for (int i = 0; i < 2; ++i) schedule.issue(call_of(Op::broadcast, 100));
  const std::vector jobs = {job(schedule)};
  CHECK(simulate(jobs, two_links({.slots = 1}, 40), alone()).end == 280);
  CHECK(simulate(jobs, two_links({.slots = 2}, 40), alone()).end == 240);
}

TEST(a_task_goes_as_fast_as_its_slowest_resource) {
  CostModel model;
  const auto core = model.add({.name = "core", .capacity = 2 * kUnit});
  const auto link = model.add({.name = "link"});
  model.add(issue(Op::broadcast, "x"), cost(0, kPerByte, {{core, kUnit}, {link, kUnit}}));
  model.add(issue(Op::broadcast, "y"), cost(0, kPerByte, {{core, kUnit}}));
  Schedule schedule;
  for (const uint8_t part : {0, 0, 1}) schedule.issue(call_of(Op::broadcast, 600), {}, part);
  // The core gives each two thirds, the link a half; the third task ends first, and the link still halves the others.
  const auto found = simulate(std::vector{job(schedule)}, model, alone());
  CHECK(found.tasks[0][2].end == 900 && found.end == 1200);
}

TEST(jobs_follow_jobs_and_waits_end_at_once) {
  CostModel model = two_links({.slots = 1});
  const auto core = model.add({.name = "core"});
  Schedule first, second;
  first.issue(call_of(Op::broadcast, 100));
  second.issue(call_of(Op::broadcast, 50), {second.wait([](bool) { return true; })});
  std::vector<Job> jobs = {job(first), job(second)};
  jobs.push_back({.after = {0, 1}, .work = cost(1000, 0, {{core, kUnit}})});
  jobs.push_back({.after = {1}, .work = cost(1000, 0, {{core, kUnit}})});
  const auto found = simulate(jobs, model, alone());
  CHECK(found.tasks[1][0].end == 0 && found.tasks[1][1].ready == 0);
  CHECK(found.tasks[1][1].issued == 100);  // on the stage, unlike job 0's, but on the same link
  CHECK(found.ends == std::vector<int64_t>{100, 150, 2150, 2150});
}

TEST(the_order_of_the_queue) {
  Schedule large, small;
  large.issue(call_of(Op::broadcast, 100));
  small.issue(call_of(Op::broadcast, 10));
  std::vector<Job> jobs = {job(large), job(large), job(small), job(large)};
  for (std::size_t i = 0; i < jobs.size(); ++i) jobs[i].priority = -static_cast<int64_t>(i);
  World world = alone();
  const auto ends = [&](QueueOrder order, bool in_order) {
    world.order = order;
    world.in_order = in_order;
    return simulate(jobs, two_links({.slots = 1}), world).ends;
  };
  CHECK(ends(QueueOrder::Arrival, false) == std::vector<int64_t>{100, 200, 210, 310});
  CHECK(ends(QueueOrder::Shortest, false) == std::vector<int64_t>{110, 210, 10, 310});
  CHECK(ends(QueueOrder::Priority, false) == std::vector<int64_t>{310, 210, 110, 100});
  CHECK(ends(QueueOrder::Priority, true) == std::vector<int64_t>{100, 200, 210, 310});  // one communicator
}

// The example of Themis' figure 5: four chunks on two dimensions, the second at half the speed of the first.
TEST(chunks_over_two_dimensions) {
  const auto add_chunk = [](Schedule& schedule, bool second_first) {
    const int64_t times[2][2] = {{1000, 500}, {2000, 250}};
    const auto* time = times[second_first ? 1 : 0];
    const uint8_t outer = second_first ? 1 : 0, inner = second_first ? 0 : 1;
    Schedule::Ids after;
    for (const int step : {0, 1, 1, 0}) {
      after = {schedule.issue(call_of(Op::broadcast, time[step]), after, step == 0 ? outer : inner)};
    }
  };
  const auto end = [&](bool reversed, QueueOrder order) {
    std::vector<Schedule> schedules(4);
    for (std::size_t i = 0; i < 4; ++i) add_chunk(schedules[i], reversed && i == 1);
    std::vector<Job> jobs;
    for (const auto& schedule : schedules) jobs.push_back(job(schedule));
    return simulate(jobs, two_links({.slots = 1}), {{ranks(4)}, false, order, false}).end;
  };
  CHECK(end(false, QueueOrder::Arrival) == 8000);
  CHECK(end(true, QueueOrder::Arrival) == 8000);
  CHECK(end(true, QueueOrder::Shortest) == 7000);
}

TEST(a_collective_starts_when_all_ranks_have_issued_it) {
  CostModel model = two_links({.scope = Resource::Scope::Rank});
  Schedule schedule;
  schedule.issue(call_of(Op::broadcast, 100));
  std::vector<Job> jobs = {{.rank = 1, .work = cost(250)}};
  for (int rank = 0; rank < 3; ++rank) jobs.push_back(job(schedule, rank));
  jobs[2].after = {0};
  const auto found = simulate(jobs, model, together(3));
  for (std::size_t i = 1; i < 4; ++i) CHECK(found.tasks[i][0].start == 250 && found.tasks[i][0].end == 350);
  CHECK(found.tasks[1][0].issued == 0 && found.tasks[2][0].issued == 250);
}

TEST(ranks_compete_for_a_resource_of_all) {
  Schedule schedule;
  schedule.copy(bytes(100), bytes(100), DType::Byte);
  std::vector<Job> jobs;
  for (int rank = 0; rank < 3; ++rank) jobs.push_back(job(schedule, rank));
  for (const auto& [scope, end] : {std::pair(Resource::Scope::Rank, 100), std::pair(Resource::Scope::All, 300)}) {
    CostModel model;
    const auto core = model.add({.name = "core", .scope = scope});
    model.add({Task::Kind::Copy}, cost(0, kPerByte, {{core, kUnit}}));
    CHECK(simulate(jobs, model, together(3)).ends == std::vector<int64_t>(3, end));
  }
}

TEST(a_receive_ends_with_its_message) {
  CostModel model;
  model.add(issue(Op::send, "x"), cost(10, kPerByte));
  Schedule sends, receives;
  sends.issue(call_of(Op::send, 40, 1));
  receives.issue(call_of(Op::recv, 40, 0));
  std::vector<Job> jobs = {{.work = cost(30)}, job(sends, 0), job(receives, 1)};
  jobs[1].after = {0};
  const auto found = simulate(jobs, model, together(2));
  CHECK(found.tasks[2][0].issued == 0 && found.tasks[2][0].start == 30 && found.ends[2] == 80 && found.ends[1] == 80);
}

TEST(collectives_match_on_ranks_with_different_numbers_of_late_issues) {
  CostModel model;
  model.add(issue(Op::send, "x"), cost(10));
  model.add(issue(Op::broadcast, "x"), cost(100));
  Schedule sends, receives, rest;
  sends.issue(call_of(Op::send, 40, 1), sends.late_after({}));
  receives.issue(call_of(Op::recv, 40, 0), receives.late_after({}));
  for (auto* each : {&sends, &receives, &rest}) each->issue(call_of(Op::broadcast, 1), each->late_after({}));
  CHECK(simulate(std::vector{job(sends, 0), job(receives, 1), job(rest, 2)}, model, together(3)).end == 100);
}

TEST(what_never_ends_is_found) {
  // Two dimensions, one place for kernels: each rank waits in another collective for the other.
  const auto place = [&](int32_t slots) {
    CostModel made;
    const auto number = made.add({.name = "kernels", .slots = slots});
    for (const auto* name : {"x", "y"}) made.add(issue(Op::broadcast, name), cost(10, 0, {{number, 0}}));
    return made;
  };
  Schedule one, other;
  for (const uint8_t part : {0, 1}) one.issue(call_of(Op::broadcast, 1), {}, part);
  for (const uint8_t part : {1, 0}) other.issue(call_of(Op::broadcast, 1), {}, part);
  const std::vector jobs = {job(one, 0), job(other, 1)};
  CHECK(check::has(problem(jobs, place(1), together(2)), "rank 0", "task 0 of job 0 never ends"));
  CHECK(simulate(jobs, place(2), together(2)).end == 10);
  CHECK(check::has(problem({jobs[0]}, place(2), together(2)), "never ends", "not every rank"));
}

TEST(jobs_that_make_no_sense_are_refused) {
  CostModel model;
  model.add(issue(Op::broadcast, "x"), cost(1));
  model.add(issue(Op::send, "x"), cost(1));
  Schedule schedule, reduces, sends, receives;
  schedule.issue(call_of(Op::broadcast, 1));
  reduces.issue(call_of(Op::all_reduce, 1));
  sends.issue(call_of(Op::send, 5, 1));
  receives.issue(call_of(Op::recv, 4, 0));
  CHECK(check::has(problem({job(reduces)}, model, alone()), "expected the cost of issue of all_reduce", "on x"));
  Job strange = job(schedule);
  strange.parts = {};
  CHECK(check::has(problem({strange}, model, alone()), "job 0", "part 0"));
  strange = job(schedule);
  strange.after = {0};
  CHECK(check::has(problem({strange}, model, alone()), "earlier job, got 0"));
  CHECK(check::has(problem({job(schedule, -1)}, model, alone()), "got -1"));
  Job own;
  own.work = cost(5, 0, {{1 << 20, 1}});
  CHECK(check::has(problem({own}, model, alone()), "work of job 0: expected one of 0 resources, got number 1048576"));
  World twice = together(2);
  twice.groups[0] = {0, 1, 0};
  CHECK(check::has(problem({job(schedule)}, model, twice), "group 0: expected each rank once, got rank 0 twice"));
  CHECK(check::has(problem({job(schedule, 5)}, model, together(2)), "member", "rank 5"));
  CHECK(check::has(problem({job(sends, 0), job(receives, 1)}, model, together(2)), "expected 4 bytes", "got 5"));
  model.add(issue(Op::all_reduce, "x"), cost(1));
  CHECK(check::has(problem({job(schedule, 0), job(reduces, 1)}, model, together(2)), "expected broadcast"));
}

TEST(the_nearest_cost_counts) {
  CostModel model;
  const auto add = [&](bool vectored, DTypeClass types, int64_t alpha) {
    model.add({Task::Kind::Issue, Op::all_to_all, vectored, types, "x"}, cost(alpha));
  };
  const auto alpha = [&](DType dtype, bool vectored) {
    Call call = call_of(Op::all_to_all, 4);
    call.dtype = dtype;
    call.vectored = vectored;
    Schedule schedule;
    return model.cost(schedule.tasks()[schedule.issue(call)], "x").alpha;
  };
  add(false, DTypeClass::Any, 1);
  CHECK(alpha(DType::Int, true) == 1 && alpha(DType::Int, false) == 1);
  add(false, DTypeClass::Integer, 2);
  CHECK(alpha(DType::Int, true) == 2 && alpha(DType::Int, false) == 2 && alpha(DType::Float, true) == 1);
  add(true, DTypeClass::Any, 3);
  CHECK(alpha(DType::Int, true) == 3 && alpha(DType::Int, false) == 2 && alpha(DType::Float, false) == 1);
  add(true, DTypeClass::Integer, 4);
  CHECK(alpha(DType::Int, true) == 4 && alpha(DType::Float, true) == 3);
  // Where ranks may see different sizes, this rank's larger side counts.
  const std::vector<int64_t> sent = {1, 2}, received = {3, 4};
  Call uneven = call_of(Op::all_to_all, 7);
  uneven.vectored = true;
  uneven.in_counts = sent, uneven.out_counts = received;
  Schedule schedule;
  CHECK(CostModel::bytes(schedule.tasks()[schedule.issue(uneven)], 2) == 7);
}

TEST(models_are_checked) {
  const auto refused = [](auto body) {
    CostModel model;
    const auto core = model.add({.name = "core"});
    try {
      body(model, core);
    } catch (const Error& error) {
      return error.code() == ErrorCode::InvalidArgument;
    }
    return false;
  };
  CHECK(refused([](CostModel& model, uint32_t) { model.add({.name = "core"}); }));
  CHECK(refused([](CostModel& model, uint32_t) { model.add({.name = "other", .capacity = 0}); }));
  CHECK(refused([](CostModel& model, uint32_t) { model.add({.name = "other", .slots = -1}); }));
  CHECK(refused([](CostModel& model, uint32_t) { model.add({Task::Kind::Copy}, cost(-1)); }));
  CHECK(refused([](CostModel& model, uint32_t) { model.add({Task::Kind::Copy}, cost(1, -1)); }));
  CHECK(refused([](CostModel& model, uint32_t) { model.add({Task::Kind::Copy}, cost(1, 0, {}, -1)); }));
  CHECK(refused([](CostModel& model, uint32_t) {
    for (int twice = 0; twice < 2; ++twice) model.add({Task::Kind::Copy}, cost(1));
  }));
  CHECK(refused([](CostModel& model, uint32_t core) { model.add({Task::Kind::Copy}, cost(1, 0, {{core + 1, 1}})); }));
  CHECK(refused([](CostModel& model, uint32_t core) { model.add({Task::Kind::Copy}, cost(1, 0, {{core, -1}})); }));
  CHECK(refused([](CostModel& model, uint32_t core) { model.add({Task::Kind::Copy}, cost(1, 0, {{core, 2000}})); }));
  CHECK(!refused([](CostModel& model, uint32_t core) { model.add({Task::Kind::Copy}, cost(1, 0, {{core, 1024}})); }));
}

// ---- properties

namespace {

struct Sizes {
  int64_t copy = 3, combine = 7, message = 11;
};

// `shuffle` only changes the numbers and names of resources.
CostModel model_of(const Sizes& sizes, bool compete, bool shuffle = false) {
  CostModel model;
  std::vector<std::string> names = {"core", "link", "memory"};
  if (shuffle) std::rotate(names.begin(), names.begin() + 1, names.end());
  std::map<std::string, std::vector<Demand>> uses;
  for (const auto& name : names) {
    const auto number = model.add({.name = shuffle ? "z" + name : name, .scope = Resource::Scope::All});
    if (compete) uses[name] = {{number, kUnit}};
  }
  model.add({Task::Kind::Copy}, cost(5, sizes.copy * kPerByte, uses["memory"]));
  model.add({Task::Kind::Combine}, cost(6, sizes.combine * kPerByte, uses["core"]));
  model.add(issue(Op::send, "x"), cost(9, sizes.message * kPerByte, uses["link"]));
  return model;
}

Simulation emulated(Op op, int size, int64_t count, const CostModel& model, Bounds& limits) {
  std::vector<Schedule> schedules(static_cast<std::size_t>(size));
  std::vector<std::byte> memory(static_cast<std::size_t>(count * size));
  std::vector<Job> jobs;
  for (int rank = 0; rank < size; ++rank) {
    Call call = call_of(op, count, size - 1);
    const bool many_in = row(op).extent == Extent::Scatter || row(op).extent == Extent::Exchange;
    const bool many_out = row(op).extent == Extent::Gather || row(op).extent == Extent::Exchange;
    call.in = {memory.data(), many_in ? count * size : count};
    call.out = {memory.data(), many_out ? count * size : count};
    auto& schedule = schedules[static_cast<std::size_t>(rank)];
    emulate(call, rank, size, schedule);
    jobs.push_back(job(schedule, rank));
    const auto one = bounds(jobs.back(), model, together(size));
    limits.serial += one.serial;
    limits.critical = std::max(limits.critical, one.critical);
  }
  return simulate(jobs, model, together(size));
}

bool equal(const Simulation& one, const Simulation& other) {
  for (std::size_t i = 0; i < one.tasks.size(); ++i) {
    for (std::size_t j = 0; j < one.tasks[i].size(); ++j) {
      const auto &a = one.tasks[i][j], &b = other.tasks[i][j];
      if (a.ready != b.ready || a.issued != b.issued || a.start != b.start || a.end != b.end) return false;
    }
  }
  return one.ends == other.ends && one.end == other.end;
}

}  // namespace

TEST(emulated_operations_keep_their_bounds) {
  for (std::size_t i = 0; i < kOps.size(); ++i) {
    const auto op = static_cast<Op>(i);
    if (row(op).fallback != Fallback::Exchange) continue;
    for (int size = 1; size <= kMostRanks; ++size) {
      for (const int64_t count : {0, 1, 37}) {
        Bounds limits, free_limits, more_limits, shuffled_limits, tripled_limits;
        const auto found = emulated(op, size, count, model_of({}, true), limits);
        const auto free = emulated(op, size, count, model_of({}, false), free_limits);
        const auto more = emulated(op, size, count, model_of({4, 7, 13}, false), more_limits);
        const auto shuffled = emulated(op, size, count, model_of({}, true, true), shuffled_limits);
        CHECK(found.end >= limits.critical && found.end <= limits.serial);
        CHECK(free.end == free_limits.critical);  // nothing to wait for but messages that all begin at once
        CHECK(more.end >= free.end);
        CHECK(equal(found, shuffled));
        for (std::size_t rank = 0; rank < found.ends.size(); ++rank) CHECK(more.ends[rank] >= free.ends[rank]);
      }
    }
  }
}

TEST(random_schedules_keep_their_bounds) {
  std::mt19937 random(1);
  const auto below = [&](uint32_t most) { return static_cast<uint32_t>(random() % most); };
  for (int round = 0; round < 300; ++round) {
    Schedule schedule;
    for (uint32_t id = 0; id < 1 + below(20); ++id) {
      Schedule::Ids after;
      for (uint32_t before = 0; before < id; ++before) {
        if (below(4) == 0) after.push_back(before);
      }
      const int64_t size = below(1000);
      if (below(2) == 0) {
        schedule.copy(bytes(size), bytes(size), DType::Byte, after);
      } else {
        schedule.issue(call_of(Op::send, size), after);
      }
    }
    const std::vector jobs = {job(schedule)};
    const auto limits = bounds(jobs[0], model_of({}, true), alone());
    const auto once = simulate(jobs, model_of({}, true), alone()), again = simulate(jobs, model_of({}, true), alone());
    CHECK(once.end >= limits.critical && once.end <= limits.serial && equal(once, again));
    for (const auto order : {QueueOrder::Priority, QueueOrder::Shortest}) {
      World world = alone();
      world.order = order;
      world.in_order = false;
      const auto other = simulate(jobs, model_of({}, true), world);
      CHECK(other.end >= limits.critical && other.end <= limits.serial);
    }
    for (std::size_t id = 0; id < schedule.tasks().size(); ++id) {
      for (const auto before : schedule.after(schedule.tasks()[id])) {
        CHECK(once.tasks[0][id].ready >= once.tasks[0][before].end);
      }
      CHECK(once.tasks[0][id].ready <= once.tasks[0][id].issued && once.tasks[0][id].start <= once.tasks[0][id].end);
    }
  }
}
