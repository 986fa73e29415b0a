// SPDX-License-Identifier: Apache-2.0
#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/python/functions.h"
#include "bindings/python/gil.h"
#include "bindings/python/parts.h"
#include "bindings/python/unlocked.h"
#include "passes/schedule/scheduler.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

constexpr std::array<const char*, 3> kEvents = {"found", "iteration", "left"};

std::shared_ptr<PlanControl> make_control(py::object function) {
  auto tell = [handler = shared(std::move(function))](PlanControl::Event event, int64_t value) {
    const Locked locked;
    try {
      (*handler)(kEvents.at(static_cast<std::size_t>(event)), value);
    } catch (py::error_already_set& error) {
      throw taken(error, "the plan of the program's iterations");
    }
  };
  return std::make_shared<PlanControl>(std::move(tell));
}

using FormRow = std::tuple<uint64_t, uint32_t, std::string, std::vector<std::string>, std::vector<uint32_t>>;
using PlaceRow = std::tuple<uint32_t, uint32_t, uint32_t>;  // call, motif, ahead

void set_plan(PlanControl& control, const std::map<std::string, std::vector<FormRow>>& groups,
              const std::vector<PlaceRow>& order, uint32_t calls) {
  std::map<std::string, std::vector<PlannedForm>> plans;
  for (const auto& [group, rows] : groups) {
    for (const auto& [signature, call, form, channels, lanes] : rows) {
      plans[group].push_back({signature, call, MotifForm::parse(form), channels, lanes});
    }
  }
  std::vector<PlanPlace> places;
  for (const auto& [call, motif, ahead] : order) places.push_back({call, motif, ahead});
  const Unlocked unlocked;
  control.set_plan(std::move(plans), std::move(places), calls);
}

using SeenRow = std::tuple<std::string, uint64_t, std::string, bool>;

std::vector<SeenRow> newest(const PlanControl& control, std::size_t count) {
  std::vector<SeenRow> rows;
  for (const auto& one : control.newest(count)) rows.emplace_back(one.group, one.signature, one.named, one.fixed);
  return rows;
}

using TracedRow = std::tuple<int64_t, uint32_t, std::string, int64_t, uint32_t, std::string, int64_t, int64_t>;

std::vector<TracedRow> traced(PlanControl& control) {
  std::vector<TracedRow> rows;
  for (const auto& one : control.trace()->end()) {
    rows.emplace_back(one.iteration, one.call, row(one.op).name, one.bytes, one.motif, *one.candidate, one.issued,
                      one.ended);
  }
  return rows;
}

py::dict statistics_of(const PlanControl& control) {
  const auto values = unlocked([&] { return control.enforcer()->statistics(); });
  py::dict result;
  result["calls"] = values.calls;
  result["motifs"] = values.issued;
  result["breaks"] = values.breaks;
  result["held_ns"] = values.held.count();
  result["digest"] = values.digest;
  return result;
}

}  // namespace

void add_schedule(py::module_& module) {
  py::class_<PlanControl, std::shared_ptr<PlanControl>>(module, "PlanControl",
                                                        "The plans of this process's groups for their iterations.")
      .def(py::init(&make_control), py::arg("handler"))
      .def(
          "watch", [](PlanControl& control) { control.watch(); }, "Looks for iterations from the next call on.")
      .def(
          "mark", [](PlanControl& control) { control.mark(); }, "An iteration begins with the next call.")
      .def("demand", &PlanControl::demand, py::arg("calls"), py::arg("repetitions"),
           "Iterations of so many calls are found after so many repetitions.")
      .def("newest", newest, py::arg("count"),
           "(group, signature, named candidate, whether it must stay as it is) of the newest calls.")
      .def("set_plan", set_plan, py::arg("groups"), py::arg("order"), py::arg("calls"),
           "Sets (signature, call, form, channels, lanes) of the calls of groups, and their order, from this call on.")
      .def(
          "flush",
          [](PlanControl& control, std::chrono::milliseconds limit) {
            const Unlocked unlocked;
            return control.enforcer()->synchronize(limit);
          },
          py::arg("limit"), "Issues all calls made so far; false if the time runs out first.")
      .def(
          "trace", [](PlanControl& control) { control.trace()->begin(); },
          "Keeps what is issued from now on, until traced().")
      .def("traced", traced,
           "(iteration, call, operation, bytes, motif, candidate, issued, ended) of the operations issued since "
           "trace(); "
           "ns, ended 0: not yet.")
      .def("statistics", statistics_of)
      .def(
          "digests", [](const PlanControl& control) { return control.enforcer()->digests(); },
          "Digests of the operations issued up to the end of each of the last rounds, while the order was kept.");
  py::class_<Scheduler, Pass, std::shared_ptr<Scheduler>>(module, "SchedulePass")
      .def(py::init([](std::shared_ptr<PlanControl> control, const Group& group,
                       std::vector<std::shared_ptr<Group>> lanes, bool all_ranks) {
             return std::make_shared<Scheduler>(std::move(control), group, std::move(lanes), all_ranks);
           }),
           py::arg("control"), py::arg("group"), py::arg("lanes"), py::arg("all_ranks"));
}

}  // namespace mcr::python
