// SPDX-License-Identifier: Apache-2.0
#include "choose/trials.h"

#include <pybind11/stl.h>

#include <chrono>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/python/parts.h"
#include "bindings/python/unlocked.h"
#include "group/group.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

using Seconds = std::chrono::duration<double>;

std::optional<Trials::Report> next_trials(double seconds) {
  return unlocked([&] { return Trials::take(std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(seconds))); });
}

// Operation, asynchronous, type, size, and the costs by candidate.
using Row = std::tuple<std::string, bool, std::string, int64_t, std::vector<std::pair<std::string, int64_t>>>;

std::vector<Row> results(Group& group) {
  std::vector<std::string> names;
  for (const auto& candidate : group.candidates()) names.push_back(candidate.name);
  std::vector<Row> rows;
  const auto& trials = group.selector().trials();
  for (const auto& found : trials == nullptr ? std::vector<Trials::Result>{} : trials->results()) {
    if (found.remembered) continue;
    if (row(found.call.op).is(kReduces) && found.call.red != RedOp::SUM) continue;  // tables have no others
    std::vector<std::pair<std::string, int64_t>> costs;
    for (const auto& [candidate, cost] : found.costs) costs.emplace_back(names[candidate], cost);
    rows.emplace_back(operation_name(found.call.op, found.call.vectored), found.call.asynchronous,
                      std::string(row(found.call.dtype).name), found.call.size_hint, std::move(costs));
  }
  return rows;
}

}  // namespace

void add_trials(py::module_& module, GroupClass& group) {
  using Report = Trials::Report;
  py::class_<Report>(module, "TrialReport", "The times of one round of trials, until the ranks have agreed on them.")
      .def_property_readonly("group", &Report::group)
      .def_property_readonly("closed", &Report::closed)
      .def_property_readonly("key", &Report::key)
      .def_property_readonly("what", &Report::what)
      .def("times", &Report::times)
      .def_property_readonly("largest_counts", &Report::largest_counts)
      .def("awaited", [](const Report& self) { return Seconds(self.awaited()).count(); })
      .def("agree", &Report::agree, py::arg("times"))
      .def("abandon", &Report::abandon)
      .def("fail", &Report::fail, py::arg("text"));
  module.def("next_trials", next_trials, py::arg("seconds"),
             "The next report, in the order of the calls; None after so many seconds, or after wake_trials().");
  module.def("wake_trials", &Trials::wake);
  group.def("_try_candidates", [](Group& self) { self.selector().try_candidates(self.spec().name); })
      .def("_trial_results", results);
}

}  // namespace mcr::python
