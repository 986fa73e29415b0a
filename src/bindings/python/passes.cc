// SPDX-License-Identifier: Apache-2.0
#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/python/functions.h"
#include "bindings/python/gil.h"
#include "bindings/python/parts.h"
#include "bindings/python/passed_call.h"
#include "bindings/python/unlocked.h"
#include "bindings/torch/named_backend.h"
#include "observe/activity.h"
#include "passes/fuse/fuse.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

using std::chrono::milliseconds;

// A pass that is a Python object: its handle() gets a PassedCall. It throws only Error, whose cause is the exception of
// handle(), as the core may keep the Error for another thread.
class PythonPass : public Pass {
 public:
  PythonPass(py::object object, std::string name, const std::shared_ptr<Group>& group)
      : object_(std::move(object)), name_(std::move(name)), group_(group) {}
  PythonPass(const PythonPass&) = delete;
  PythonPass& operator=(const PythonPass&) = delete;
  ~PythonPass() override { let_go(object_.release().ptr()); }

  std::string_view name() const override { return name_; }

  Outcome handle(Passage& passage, const Next& next) override {
    const Activity::Pause pause;
    const Locked locked;
    const NamedBackend::None unnamed;
    const auto call = std::make_shared<PassedCall>(group_.lock(), name_, passage, next);
    try {
      const py::object returned = object_.attr("handle")(call);
      const auto outcome = call->outcome(returned);
      call->close();
      return outcome;
    } catch (py::error_already_set& error) {
      call->close();
      throw taken(error, where(name_, passage));
    } catch (const Error& error) {
      call->close();
      throw refusal(passage, error);
    }
  }

 private:
  py::object object_;
  const std::string name_;
  const std::weak_ptr<Group> group_;  // weak: the group owns its passes
};

py::object proceed(PassedCall& call, const py::object& input, const py::object& output, const py::object& backend,
                   const py::kwargs& others) {
  if (others.empty()) return call.proceed(input, output, backend);
  throw Error(ErrorCode::InvalidType,
              "proceed(): expected input, output and backend, got " + others.begin()->first.cast<std::string>());
}

void add_call(py::module_& module) {
  py::class_<PassedCall, std::shared_ptr<PassedCall>>(module, "PassedCall", "A call as a pass sees it.")
      .def_property_readonly(
          "op", &PassedCall::op,
          "The operation's name without its form: all_gather for all_gather_into_tensor and all_gatherv, too.")
      .def_property_readonly(
          "group", &PassedCall::group,
          "The group, as torch's process group; a part from torch's ProcessGroup.split_group that the program has "
          "given to no function of mcr_dl is the core's group.")
      .def_property_readonly("backend", &PassedCall::backend, "The candidate that the caller named, or None.")
      .def_property_readonly("dtype", &PassedCall::dtype, "The element type.")
      .def_property_readonly("reduction", &PassedCall::reduction,
                             "The reduction's name, such as SUM; None if it has none.")
      .def_property_readonly("root", &PassedCall::root, "Root or peer as a rank of the group, or None.")
      .def_property_readonly("tag", &PassedCall::tag, "The tag of a message; 0 for collectives.")
      .def_property_readonly("async_op", &PassedCall::asynchronous, "Whether the caller gets a Work.")
      .def_property_readonly("vectored", &PassedCall::vectored, "Whether it has counts per rank.")
      .def_property_readonly("input", &PassedCall::input,
                             "The data to send, in one dimension, on the call's memory; None if there is none, or if "
                             "the output is sent (all_reduce, reduce, broadcast, send).")
      .def_property_readonly("output", &PassedCall::output,
                             "The memory of the result, in one dimension; None if there is none.")
      .def_property_readonly("input_counts", &PassedCall::input_counts, "Elements per rank; empty if even.")
      .def_property_readonly("output_counts", &PassedCall::output_counts, "Elements per rank; empty if even.")
      .def_property_readonly("nbytes", &PassedCall::bytes, "Bytes of the larger side on this rank.")
      .def("proceed", proceed, py::arg("input") = py::none(), py::arg("output") = py::none(),
           py::arg("backend") = py::none(),
           "Hands the call on, if need be with other tensors of as many elements or another backend. Returns the Work "
           "of an asynchronous call, the sender's group rank of a blocking receive, else None.")
      .def("done", &PassedCall::done,
           "Answers the call: it is complete with what is in its output. Returns the Work of an asynchronous call.")
      .def("hold", &PassedCall::hold,
           "Keeps an asynchronous call back: returns its Work, which completes after a later proceed().")
      .def("after", &PassedCall::after, py::arg("step"),
           "Runs a function of no arguments when the result is there, before the call is seen to be complete.");
}

using Limits = std::map<std::string, std::tuple<int64_t, int64_t, int64_t>>;

std::shared_ptr<Fuse> make_fuse(std::shared_ptr<Group> shadow, const Limits& limits) {
  std::map<std::string, FuseLimits> made;
  for (const auto& [backend, values] : limits) {
    const auto& [buffer, largest, microseconds] = values;
    made[backend] = {buffer, std::chrono::microseconds(microseconds), largest};
  }
  return std::make_shared<Fuse>(std::move(shadow), made);
}

py::dict statistics_of(const Fuse& fuse) {
  const auto values = unlocked([&] { return fuse.statistics(); });
  py::dict result;
  result["calls"] = values.calls;
  result["flushes"] = values.flushes;
  result["nbytes"] = values.bytes;
  result["digest"] = values.digest;
  return result;
}

Chain passes_of(const Group& group) {
  const auto chain = group.chain();
  return chain == nullptr ? Chain{} : *chain;
}

// The number of the group's newest collective, 0 before the first, and its operation.
std::pair<int64_t, std::string> newest_collective(Group& group) {
  const auto count = group.position().read(std::numeric_limits<int64_t>::max()).collectives;
  const auto newest = group.position().read(count).newest;
  if (newest.empty()) return {0, ""};
  return {newest.back().seq, operation_name(newest.back().op, newest.back().vectored)};
}

}  // namespace

void add_passes(py::module_& module) {
  add_call(module);
  py::class_<Pass, std::shared_ptr<Pass>>(module, "Pass", "A step that every call of a group goes through.")
      .def_property_readonly(
          "name", [](const Pass& pass) { return std::string(pass.name()); }, "The name in `set_passes` and reports.")
      .def("_synchronize",
           [](Pass& pass, milliseconds limit) {
             const Unlocked guard;
             return pass.synchronize(limit);
           })
      .def_property_readonly("_broken", [](const Pass& pass) { return unlocked([&] { return pass.broken(); }); });
  py::class_<PythonPass, Pass, std::shared_ptr<PythonPass>>(module, "PythonPass")
      .def(py::init<py::object, std::string, std::shared_ptr<Group>>(), py::arg("handler"), py::arg("name"),
           py::arg("group"));
  py::class_<Fuse, Pass, std::shared_ptr<Fuse>>(module, "FusePass")
      .def(py::init(&make_fuse), py::arg("shadow"), py::arg("limits"))
      .def("statistics", statistics_of);
  module.def("set_passes",
             [](Group& group, std::vector<std::shared_ptr<Pass>> passes) { group.set_passes(std::move(passes)); });
  module.def("passes", passes_of);
  module.def("newest_collective", newest_collective);
}

}  // namespace mcr::python
