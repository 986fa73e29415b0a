// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/python/gil.h"
#include "bindings/python/names.h"
#include "bindings/python/parts.h"
#include "bindings/python/signals.h"
#include "choose/plan_search.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

using MotifRow = std::tuple<int64_t, uint32_t, std::vector<uint32_t>>;  // ns, channel, motifs before it
using NodeRow =
    std::tuple<std::string, std::vector<std::pair<uint32_t, uint32_t>>, std::vector<std::vector<MotifRow>>, bool>;
using PlaceRow = std::tuple<uint32_t, uint32_t, uint32_t>;
using TimesRow = std::tuple<int64_t, int64_t, int64_t>;

std::shared_ptr<PlanGraph> make_graph(std::vector<uint64_t> channels, const std::vector<NodeRow>& rows) {
  auto graph = std::make_shared<PlanGraph>();
  graph->channels = std::move(channels);
  for (const auto& [name, after, options, call] : rows) {
    auto& node = graph->nodes.emplace_back();
    node.name = name;
    node.call = call;
    for (const auto& [before, back] : after) node.after.push_back({before, back});
    for (const auto& option : options) {
      auto& motifs = node.options.emplace_back();
      for (const auto& [time, channel, earlier] : option) motifs.push_back({time, channel, earlier});
    }
  }
  graph->check();
  return graph;
}

ExecutionPlan make_plan(const std::vector<uint32_t>& options, const std::vector<int8_t>& levels,
                        const std::string& order, const std::vector<PlaceRow>& sequence) {
  ExecutionPlan plan{options, levels, named<PlanOrder>(kPlanOrders, order), {}};
  for (const auto& [node, motif, ahead] : sequence) plan.sequence.push_back({node, motif, ahead});
  return plan;
}

py::dict found(const PlanSearch& result) {
  py::dict found;
  using Row = std::pair<std::vector<uint32_t>, std::vector<int>>;
  std::vector<Row> plans;
  for (const auto& one : result.plans)
    plans.emplace_back(one.options, std::vector<int>(one.levels.begin(), one.levels.end()));
  found["plans"] = plans;
  found["chains"] = result.chains;
  found["evaluations"] = result.evaluations;
  found["complete"] = result.complete;
  return found;
}

PlanSearch search(const PlanGraph& graph, uint32_t chains, uint64_t seed, uint32_t most, int64_t budget, bool levels,
                  const std::vector<const ExecutionPlan*>& starts) {
  PlanSearch::Settings settings{chains, seed, most, budget, levels, {}, check_signals};
  for (const auto* start : starts) settings.starts.push_back(*start);
  const Unlocked guard;
  return PlanSearch::run(graph, settings);
}

// The times of all motifs, by iteration, node and motif.
std::vector<std::vector<std::vector<TimesRow>>> played(const PlanGraph& graph, const ExecutionPlan& plan,
                                                       uint32_t iterations) {
  ListScheduler scheduler(graph);
  scheduler.run(plan, iterations);
  std::vector<std::vector<std::vector<TimesRow>>> rows(iterations);
  for (uint32_t iteration = 0; iteration < iterations; ++iteration) {
    for (uint32_t node = 0; node < graph.nodes.size(); ++node) {
      auto& row = rows[iteration].emplace_back();
      for (const auto& one : scheduler.times(iteration, node)) row.emplace_back(one.ready, one.start, one.end);
    }
  }
  return rows;
}

}  // namespace

void add_plans(py::module_& module) {
  py::class_<ExecutionPlan>(module, "ExecutionPlan")
      .def(py::init(&make_plan), py::arg("options"), py::arg("levels") = std::vector<int8_t>(),
           py::arg("order") = "critical", py::arg("sequence") = std::vector<PlaceRow>());
  py::class_<PlanGraph, std::shared_ptr<PlanGraph>>(module, "PlanGraph")
      .def(py::init(&make_graph), py::arg("channels"), py::arg("nodes"))
      .def("play", &played, py::arg("plan"), py::arg("iterations"))
      .def(
          "cost",
          [](const PlanGraph& self, const ExecutionPlan& plan, uint32_t unrolled) {
            return ListScheduler(self).cost(plan, unrolled);
          },
          py::arg("plan"), py::arg("unrolled") = 2)
      .def("fastest",
           [](const PlanGraph& self) {
             ListScheduler scheduler(self);
             return fastest_options(scheduler, self);
           })
      .def(
          "search",
          [](const PlanGraph& self, uint32_t chains, uint64_t seed, uint32_t most, int64_t budget, bool levels,
             const std::vector<const ExecutionPlan*>& starts) {
            return found(search(self, chains, seed, most, budget, levels, starts));
          },
          py::arg("chains") = 10, py::arg("seed") = 0, py::arg("most") = 0, py::arg("budget") = 0,
          py::arg("levels") = true, py::arg("starts") = std::vector<const ExecutionPlan*>());
}

}  // namespace mcr::python
