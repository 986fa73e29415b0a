// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/themis.h"

#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <vector>

#include "bindings/python/names.h"
#include "choose/themis.h"

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

py::dict planned(const std::vector<NetworkRow>& rows, const std::string& op, int64_t nbytes,
                 const std::vector<std::string>& names, const Numbers& chunks, int in_flight) {
  const auto network = network_of(rows);
  const themis::Request request{named<Op>(kOps, op), nbytes, in_flight};
  std::vector<themis::Policy> policies;
  for (const auto& name : names) policies.push_back(named<themis::Policy>(themis::kPolicies, name));
  themis::Plan found;
  {
    const py::gil_scoped_release released;
    found = best(network, request, policies, chunks);
  }
  std::vector<Numbers> orders;
  for (const auto& order : found.orders) orders.emplace_back(order.begin(), order.end());
  py::list steps;
  for (const auto& step : found.steps) {
    steps.append(py::make_tuple(static_cast<int>(step.chunk), static_cast<int>(step.index),
                                static_cast<int>(step.dimension), step.ready, step.start, step.end));
  }
  py::dict result;
  result["policy"] = std::string(themis::kPolicies.at(static_cast<std::size_t>(found.policy)));
  result["chunks"] = found.chunks;
  result["orders"] = orders;
  result["steps"] = steps;
  result["work"] = found.work;
  result["makespan"] = found.makespan;
  return result;
}

}  // namespace

void add_themis(py::module_& module) {
  module.def("themis_plan", &planned, py::arg("network"), py::arg("op"), py::arg("nbytes"), py::arg("policies"),
             py::arg("chunks"), py::arg("in_flight") = 1,
             "The plan with the shortest makespan; times in picoseconds; dimensions count from 0.");
}

}  // namespace mcr::python
