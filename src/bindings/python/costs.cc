// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "algorithms/emulate.h"
#include "algorithms/stripe.h"
#include "bindings/python/names.h"
#include "bindings/python/parts.h"
#include "bindings/python/unlocked.h"
#include "choose/simulate.h"
#include "codecs/codec.h"
#include "group/topology.h"
#include "passes/compress/compressed.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

using Ids = Schedule::Ids;

constexpr auto kCosted = std::span(kTaskKinds).first<5>();  // all but a wait, which costs nothing

// ---- topologies

using DimensionRow = std::tuple<std::string, int, int64_t, int64_t, std::string>;

Topology make_topology(const std::vector<DimensionRow>& rows, int size, std::vector<int> ranks) {
  std::vector<Dimension> dimensions;
  for (const auto& [name, length, bandwidth, latency, backend] : rows) {
    dimensions.push_back({name, length, bandwidth, latency, backend});
  }
  return {std::move(dimensions), size, std::move(ranks)};
}

std::vector<DimensionRow> rows_of(const Topology& topology) {
  std::vector<DimensionRow> rows;
  for (const auto& one : topology.dimensions()) {
    rows.emplace_back(one.name, one.size, one.bandwidth, one.latency, one.backend);
  }
  return rows;
}

void add_topology(py::module_& module) {
  py::class_<Topology>(module, "Topology")
      .def(py::init(&make_topology), py::arg("dimensions"), py::arg("size"), py::arg("ranks") = std::vector<int>())
      .def_static(
          "of_hosts", [](const std::vector<int>& hosts) { return Topology::of_hosts(hosts); }, py::arg("hosts"))
      .def(
          "of_members", [](const Topology& self, const std::vector<int>& members) { return self.of_members(members); },
          py::arg("members"))
      .def_property_readonly("dimensions", &rows_of)
      .def_property_readonly("ranks", &Topology::ranks)
      .def(
          "index_of", [](const Topology& self, const std::string& name) { return self.index_of(name); },
          py::arg("name"))
      .def("coordinates", &Topology::coordinates, py::arg("rank"))
      .def("line", &Topology::line, py::arg("rank"), py::arg("dimension"));
}

// ---- schedules without memory, only sizes

Call sized(const std::string& op, int64_t nbytes, const std::string& dtype, int peer) {
  Call call;
  call.op = named<Op>(kOps, op);
  call.dtype = named<DType>(kDTypes, dtype);
  call.size_hint = nbytes;
  call.root = peer;
  return call;
}

// A call with `count` elements per block, for simulation only: no task runs on its memory.
Call unreal(const std::string& op, int64_t count, const std::string& dtype, int size, int root) {
  static std::byte memory;
  Call call = sized(op, -1, dtype, root);
  const auto extent = row(call.op).extent;
  const bool many_in = extent == Extent::Scatter || extent == Extent::Exchange;
  const bool many_out = extent == Extent::Gather || extent == Extent::Exchange;
  if (extent != Extent::Same) call.in = {&memory, many_in ? count * size : count};
  call.out = {&memory, many_out ? count * size : count};
  return call;
}

std::shared_ptr<Schedule> emulated(const std::string& op, int64_t count, const std::string& dtype, int rank, int size,
                                   int root) {
  const auto schedule = Schedule::make();
  emulate(unreal(op, count, dtype, size, root), rank, size, *schedule);
  return schedule;
}

std::shared_ptr<Schedule> striped(const std::string& op, int64_t count, const std::string& dtype, int share, int size,
                                  int root) {
  const auto schedule = Schedule::make();
  stripe(unreal(op, count, dtype, size, root), size, {share}, *schedule);
  return schedule;
}

std::shared_ptr<Schedule> compressed(const std::string& op, int64_t count, const std::string& dtype,
                                     const std::string& codec, int rank, int size, int root) {
  const auto* found = unlocked([&] { return Codecs::instance().coding(codec).codec; });
  if (found == nullptr || !found->fixed()) {
    throw Error(ErrorCode::InvalidArgument, "Schedule.compressed: expected a codec of fixed size, got '" + codec + "'");
  }
  auto schedule = Schedule::make();
  Compressed(*schedule, unreal(op, count, dtype, size, root), rank, size, *found).build(0);
  return schedule;
}

using TaskRow = std::tuple<std::string, std::string, int64_t, uint8_t, Ids>;

std::vector<TaskRow> rows_of(const Schedule& schedule, int ranks) {
  std::vector<TaskRow> rows;
  for (const auto& task : schedule.tasks()) {
    const bool issue = task.kind == Task::Kind::Issue;
    const auto after = schedule.after(task);
    rows.emplace_back(kTaskKinds[static_cast<std::size_t>(task.kind)], issue ? row(task.call.op).name : "",
                      CostModel::bytes(task, ranks), task.part, Ids(after.begin(), after.end()));
  }
  return rows;
}

// The predecessors of the schedule's next task.
const Ids& checked(const Schedule& schedule, const Ids& after) {
  for (const auto id : after) {
    if (id < schedule.tasks().size()) continue;
    throw Error(ErrorCode::InvalidArgument, "Schedule: after: expected some of the " +
                                                std::to_string(schedule.tasks().size()) +
                                                " earlier tasks, got number " + std::to_string(id));
  }
  return after;
}

void add_schedules(py::module_& module) {
  py::class_<Schedule, std::shared_ptr<Schedule>>(module, "Schedule")
      .def(py::init(&Schedule::make))
      .def_static("emulated", &emulated, py::arg("op"), py::arg("count"), py::arg("dtype"), py::arg("rank"),
                  py::arg("size"), py::arg("root") = 0)
      .def_static("striped", &striped, py::arg("op"), py::arg("count"), py::arg("dtype"), py::arg("share"),
                  py::arg("size"), py::arg("root") = 0)
      .def_static("compressed", &compressed, py::arg("op"), py::arg("count"), py::arg("dtype"), py::arg("codec"),
                  py::arg("rank"), py::arg("size"), py::arg("root") = 0)
      .def(
          "tasks", [](const Schedule& self, int ranks) { return rows_of(self, ranks); }, py::arg("ranks"),
          "Of each task: its kind, operation, bytes as costs go by them, part, and predecessors.")
      .def(
          "issue",
          [](Schedule& self, const std::string& op, int64_t nbytes, const Ids& after, uint8_t part, int peer,
             const std::string& dtype) {
            return self.issue(sized(op, nbytes, dtype, peer), checked(self, after), part);
          },
          py::arg("op"), py::arg("nbytes"), py::arg("after") = Ids(), py::arg("part") = 0, py::arg("peer") = 0,
          py::arg("dtype") = "float32");
}

// ---- costs and simulation

using Demands = std::vector<std::pair<uint32_t, int32_t>>;
using Samples = std::vector<std::pair<int64_t, int64_t>>;  // bytes, ns

Cost cost_of(int64_t alpha, int64_t per_mib, int64_t latency, const Demands& demands, const Samples& points) {
  Cost cost{{}, alpha, per_mib, latency, {}};
  for (const auto& [resource, share] : demands) cost.demands.push_back({resource, share});
  std::vector<CostCurve::Point> curve;
  for (const auto& [nbytes, time] : points) curve.push_back({nbytes, fixed_log2(time)});
  cost.curve = CostCurve(std::move(curve));
  return cost;
}

// The time of one Issue and the resources that it uses; nothing if the model has no such cost.
std::optional<std::pair<int64_t, std::vector<std::string>>> issue_cost(const CostModel& model, const std::string& name,
                                                                       const std::string& op, const std::string& types,
                                                                       int64_t nbytes) {
  for (const auto each : {named<DTypeClass>(kDTypeClasses, types), DTypeClass::Any}) {
    const auto found = model.costs().find({Task::Kind::Issue, named<Op>(kOps, op), false, each, name});
    if (found == model.costs().end()) continue;
    std::vector<std::string> resources;
    for (const auto& demand : found->second.demands) resources.push_back(model.resources()[demand.resource].name);
    return std::pair{found->second.at(nbytes), resources};
  }
  return std::nullopt;
}

void add_model(py::module_& module) {
  py::class_<CostModel>(module, "CostModel")
      .def(py::init<>())
      .def(
          "add_resource",
          [](CostModel& self, const std::string& name, const std::string& scope, int32_t capacity, int32_t slots) {
            return self.add({name, named<Resource::Scope>(kScopes, scope), capacity, slots});
          },
          py::arg("name"), py::arg("scope") = "rank", py::arg("capacity") = kUnit, py::arg("slots") = 0)
      .def(
          "add_cost",
          [](CostModel& self, const std::string& kind, const std::string& name, const std::string& op,
             const std::string& types, int64_t alpha, int64_t per_mib, int64_t latency, const Demands& demands,
             const Samples& points) {
            self.add({named<Task::Kind>(kCosted, kind), named<Op>(kOps, op), false,
                      named<DTypeClass>(kDTypeClasses, types), name},
                     cost_of(alpha, per_mib, latency, demands, points));
          },
          py::arg("kind"), py::arg("name") = "", py::arg("op") = "barrier", py::arg("types") = "any",
          py::arg("alpha") = 0, py::arg("per_mib") = 0, py::arg("latency") = 0, py::arg("demands") = Demands(),
          py::arg("points") = Samples())
      .def("issue_cost", &issue_cost, py::arg("name"), py::arg("op"), py::arg("types"), py::arg("nbytes"),
           "Nanoseconds and resources of a call; None if the model lacks its cost.");
}

py::dict simulated(const CostModel& model, const std::vector<const Job*>& given, const World& world) {
  std::vector<Job> jobs;
  for (const auto* job : given) jobs.push_back(*job);
  const auto found = simulate(jobs, model, world);
  std::vector<std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>>> tasks;
  for (const auto& times : found.tasks) {
    tasks.emplace_back();
    for (const auto& one : times) tasks.back().emplace_back(one.ready, one.issued, one.start, one.end);
  }
  py::dict result;
  result["tasks"] = tasks;
  result["ends"] = found.ends;
  result["end"] = found.end;
  return result;
}

// The nanoseconds of each of `rounds` runs of a host task, after a first run that maps the memory. Before each run,
// `between` bytes of other memory are written, as the other tasks of a call take the caches.
std::vector<int64_t> time_task(const std::string& kind, int64_t count, const std::string& dtype,
                               const std::string& codec, int rounds, int64_t between) {
  if (count < 0 || count > (int64_t{1} << 32) || rounds < 1 || between < 0 || between > (int64_t{1} << 32)) {
    throw Error(ErrorCode::InvalidArgument,
                "time_task: expected 0 to 2^32 elements, at least one round, and 0 to 2^32 bytes between rounds");
  }
  const auto task = named<Task::Kind>(kCosted, kind);
  const auto type = named<DType>(kDTypes, dtype);
  const bool coded = task == Task::Kind::Encode || task == Task::Kind::Decode;
  const Codec* used = coded ? Codecs::instance().coding(codec).codec : nullptr;
  if (task == Task::Kind::Issue || (coded && (used == nullptr || !used->accepts(type)))) {
    throw Error(ErrorCode::InvalidArgument, "time_task: expected copy, combine, or encode or decode with a codec for " +
                                                dtype + ", got " + kind + " '" + codec + "'");
  }
  Schedule schedule;
  const auto memory = [&](int64_t bytes) {
    auto* made = schedule.scratch(std::max<int64_t>(bytes, 1));
    std::memset(made, 0, static_cast<std::size_t>(std::max<int64_t>(bytes, 1)));
    return made;
  };
  const DType seen = coded ? coded_type(type) : type;
  auto *from = memory(count * size_of(seen)), *to = memory(count * size_of(seen));
  auto* encoded = memory(coded ? used->capacity(count, seen) : 0);
  const int64_t length = coded ? used->encode(from, count, seen, encoded) : 0;
  const Buffer in{from, count}, out{to, count};
  if (task == Task::Kind::Copy) schedule.copy(out, in, type);
  if (task == Task::Kind::Combine) schedule.combine(out, in, type, RedOp::SUM, {});
  if (task == Task::Kind::Encode) schedule.encode({}, [=](Schedule&) { used->encode(from, count, seen, encoded); });
  if (task == Task::Kind::Decode) {
    schedule.decode({}, [=](Schedule&) { used->decode(encoded, length, to, count, seen); });
  }
  constexpr int64_t kLine = 64;
  auto* other = reinterpret_cast<unsigned char*>(memory(between));
  std::vector<int64_t> times;
  for (int round = 0; round <= rounds; ++round) {
    for (int64_t at = 0; at < between; at += kLine) ++other[at];
    const auto start = std::chrono::steady_clock::now();
    schedule.compute(0);
    const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - start;
    if (round > 0) times.push_back(taken.count());
  }
  return times;
}

}  // namespace

void add_costs(py::module_& module) {
  module.def("time_task", &time_task, py::arg("kind"), py::arg("count"), py::arg("dtype"), py::arg("codec") = "",
             py::arg("rounds") = 1, py::arg("between") = 0, py::call_guard<Unlocked>(),
             "Nanoseconds of runs of a copy, combine, encode or decode on this machine. Before each run, `between` "
             "bytes of other memory are written.");
  add_topology(module);
  add_schedules(module);
  add_model(module);
  using Parts = std::vector<std::pair<std::string, uint32_t>>;
  py::class_<Job>(module, "Job")
      .def(py::init([](const Schedule* schedule, int rank, const Parts& parts, const std::string& codec,
                       const std::vector<uint32_t>& after, int64_t priority, int64_t work, const Demands& demands) {
             Job job{schedule, rank, {}, codec, after, priority, cost_of(work, 0, 0, demands, {})};
             for (const auto& [candidate, group] : parts) job.parts.push_back({candidate, group});
             return job;
           }),
           py::keep_alive<1, 2>(), py::arg("schedule"), py::arg("rank") = 0, py::arg("parts") = Parts(),
           py::arg("codec") = "", py::arg("after") = std::vector<uint32_t>(), py::arg("priority") = 0,
           py::arg("work") = 0, py::arg("demands") = Demands());
  module.def(
      "simulate",
      [](const CostModel& model, const std::vector<const Job*>& jobs, std::vector<std::vector<int>> groups,
         bool together, const std::string& order, bool in_order) {
        const auto queue = named<QueueOrder>(kQueueOrders, order);
        return simulated(model, jobs, {std::move(groups), together, queue, in_order});
      },
      py::arg("model"), py::arg("jobs"), py::arg("groups"), py::arg("together") = false, py::arg("order") = "arrival",
      py::arg("in_order") = true,
      "Times of jobs by a cost model, in nanoseconds: of each task (ready, issued, start, end), and the ends of jobs.");
}

}  // namespace mcr::python
