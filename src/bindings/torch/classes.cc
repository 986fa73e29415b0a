// SPDX-License-Identifier: Apache-2.0
// The Python classes of the backend.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/candidate_name.h"
#include "base/error.h"
#include "bindings/python/arguments.h"
#include "bindings/python/gil.h"
#include "bindings/python/objects.h"
#include "bindings/torch/backend.h"
#include "bindings/torch/completions.h"
#include "bindings/torch/error.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

using Options = TorchBackend::Options;

std::string represent(const Options& options) {
  std::string names;
  for (const auto& name : options.backends) names += (names.empty() ? "" : ", ") + name;
  const std::string uniform = options.uniform ? (*options.uniform ? " uniform=True" : " uniform=False") : "";
  return "<mcr_dl.Options backends=[" + names + "]" + uniform + ">";
}

// A list of names, or one text as for `backend=`.
std::vector<std::string> names_of(const py::object& backends) {
  if (PyUnicode_Check(backends.ptr()) != 0) {
    const auto pieces = split_outside_parentheses(string(backends.ptr(), "backends", "a text in UTF-8"), ',');
    return {pieces.begin(), pieces.end()};
  }
  const auto entries = PySequence_Check(backends.ptr()) != 0 ? entries_of(backends.ptr()) : Owner();
  if (entries == nullptr) {
    throw Error(ErrorCode::InvalidType,
                "backends: expected a name or a list of names, got " + represented(backends.ptr()));
  }
  std::vector<std::string> names;
  for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(entries.get()); ++index)
    names.emplace_back(string(PyTuple_GET_ITEM(entries.get(), index), "backends", "names"));
  return names;
}

}  // namespace

void add_torch_backend(py::module_& module) {
  TorchError::register_translator();
  py::class_<Options, c10d::Backend::Options, c10::intrusive_ptr<Options>>(
      module, "Options",
      "A group's backends and the form of its calls: `pg_options=` of functions that make groups and meshes.")
      .def(py::init([](const py::object& backends, std::optional<bool> uniform) {
             return c10::make_intrusive<Options>(names_of(backends), uniform);
           }),
           py::arg("backends") = std::vector<std::string>(), py::arg("uniform") = py::none())
      .def_readonly(
          "backends", &Options::backends,
          "Names of the group's backends, in order of preference; empty: those of the default group, or of the "
          "parent group.")
      .def_readonly(
          "uniform", &Options::uniform,
          "True: all ranks use the same form; False: a call may be blocking on some ranks and asynchronous on others; "
          "None: as MCR_DL_UNIFORM says, or as the parent group does.")
      .def("__deepcopy__",
           [](const Options& options, const py::dict&) { return c10::make_intrusive<Options>(options); })
      .def("__repr__", represent);
  module.def("drain_futures", &Completions::drain, py::call_guard<Unlocked>(), py::arg("limit"),
             "Waits until the callbacks of completed operations have run. False if some are still running then.");
  py::class_<TorchBackend, c10d::Backend, c10::intrusive_ptr<TorchBackend>>(
      module, "TorchBackend", "A group as a backend of torch.distributed.")
      .def(py::init([](std::shared_ptr<Group> group, std::vector<std::string> backends) {
             return c10::make_intrusive<TorchBackend>(std::move(group),
                                                      c10::make_intrusive<Options>(std::move(backends)));
           }),
           py::arg("group"), py::arg("backends"))
      .def_property_readonly("group", &TorchBackend::group)
      // torch copies these where it splits a group without given ones.
      .def_property_readonly(
          "options",
          [](TorchBackend& self) { return c10::static_intrusive_pointer_cast<Options>(self.getBackendOptions()); })
      // torch binds these for each of its own backends.
      .def("get_error", &TorchBackend::getError)
      .def("_set_default_timeout", &TorchBackend::setTimeout, py::arg("timeout"))
      // torch calls this on ranks that are left out of a new group, for NCCL's sake.
      .def("perform_nocolor_split", [](TorchBackend&, const py::object&) {});
}

}  // namespace mcr::python
