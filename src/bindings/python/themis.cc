// SPDX-License-Identifier: Apache-2.0
#include "engine/themis.h"

#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/python/gil.h"
#include "bindings/python/names.h"
#include "bindings/python/parts.h"
#include "group/group.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

using NetworkRow = std::tuple<std::string, int, int64_t, int64_t, int>;  // kind, size, bandwidth, latency, links
using Numbers = std::vector<int>;

std::vector<themis::Dimension> network_of(const std::vector<NetworkRow>& rows) {
  std::vector<themis::Dimension> network;
  for (const auto& [kind, size, bandwidth, latency, links] : rows) {
    network.push_back({named<themis::Dimension::Kind>(themis::kKinds, kind), size, bandwidth, latency, links});
  }
  return network;
}

themis::Plan planned(const std::vector<NetworkRow>& rows, const std::string& op, int64_t nbytes,
                     const std::vector<std::string>& names, const Numbers& chunks, int in_flight) {
  const auto network = network_of(rows);
  std::vector<themis::Policy> policies;
  for (const auto& name : names) policies.push_back(named<themis::Policy>(themis::kPolicies, name));
  const themis::Request request{named<Op>(kOps, op), nbytes, in_flight};
  const Unlocked guard;
  return best(network, request, policies, chunks);
}

std::vector<Numbers> orders_of(const themis::Plan& plan) {
  std::vector<Numbers> orders;
  for (const auto& order : plan.orders) orders.emplace_back(order.begin(), order.end());
  return orders;
}

using StepRow = std::tuple<int, int, int, int64_t, int64_t, int64_t>;

std::vector<StepRow> steps_of(const themis::Plan& plan) {
  std::vector<StepRow> rows;
  for (const auto& one : plan.steps)
    rows.emplace_back(one.chunk, one.index, one.dimension, one.ready, one.start, one.end);
  return rows;
}

// `parts`: for each dimension the group of the rank's line, and the candidate's name.
void connect(Group& group, const std::string& name, const std::vector<NetworkRow>& network, Numbers ranks,
             std::vector<bool> exchanges, const std::vector<DimensionsCommunicator::Part>& parts) {
  Grid grid{{}, std::move(ranks), std::move(exchanges)};
  for (const auto& row : network) grid.sizes.push_back(std::get<1>(row));
  connect_themis(group, name, network_of(network), std::move(grid), parts);
}

std::optional<themis::Plan> plan_of_call(const std::vector<NetworkRow>& network, const std::string& name,
                                         int64_t nbytes, bool baseline) {
  const auto op = named<Op>(kOps, name);
  if (!has_ordered(op)) return std::nullopt;
  return plan_of(network_of(network), op, nbytes, baseline);
}

std::map<std::string, int64_t> limits() {
  return {{"dimensions", static_cast<int64_t>(themis::kMostDimensions)},
          {"size", themis::kMostSize},
          {"links", themis::kMostLinks},
          {"ranks", themis::kMostRanks},
          {"bandwidth", themis::kMostBandwidth},
          {"latency", themis::kMostLatency},
          {"bytes", themis::kMostBytes},
          {"chunks", themis::kMostChunks},
          {"in_flight", themis::kMostInFlight}};
}

}  // namespace

void add_themis(py::module_& module, GroupClass& group) {
  py::class_<themis::Plan>(module, "ThemisPlan")
      .def(py::init(&planned), py::arg("network"), py::arg("op"), py::arg("nbytes"), py::arg("policies"),
           py::arg("chunks"), py::arg("in_flight") = 1)
      .def_property_readonly("policy",
                             [](const themis::Plan& self) {
                               return std::string(themis::kPolicies.at(static_cast<std::size_t>(self.policy)));
                             })
      .def_readonly("chunks", &themis::Plan::chunks)
      .def_property_readonly("orders", &orders_of)
      .def("steps", &steps_of)
      .def_readonly("work", &themis::Plan::work)
      .def_readonly("makespan", &themis::Plan::makespan);
  module.def("themis_plan", plan_of_call, py::arg("network"), py::arg("op"), py::arg("nbytes"), py::arg("baseline"),
             "The plan of a call of a candidate \"themis(...)\" on this network; None for operations without plans.");
  module.def("themis_limits", limits,
             "The largest values that plans accept: bandwidth in bytes per second, latency in picoseconds.");
  module.def(
      "themis_chunk_counts", [] { return Numbers(themis::kChunkCounts.begin(), themis::kChunkCounts.end()); },
      "The numbers of chunks that are worth a try.");
  group.def("_connect_themis", connect);
}

}  // namespace mcr::python
