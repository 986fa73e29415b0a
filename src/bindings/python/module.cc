// SPDX-License-Identifier: Apache-2.0
// The extension module: the classes that are not on the hot path.
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/process.h"
#include "bindings/python/calls.h"
#include "bindings/python/devices.h"
#include "bindings/python/errors.h"
#include "bindings/python/gil.h"
#include "bindings/python/handles.h"
#include "bindings/python/log.h"
#include "bindings/python/names.h"
#include "bindings/python/parts.h"
#include "bindings/python/signals.h"
#include "bindings/python/signature.h"
#include "bindings/python/unlocked.h"
#include "bindings/python/work.h"
#include "bindings/torch/backend.h"
#include "bindings/torch/named_backend.h"
#include "bindings/torch/profiler.h"
#include "bindings/torch/store.h"
#include "choose/decision.h"
#include "engine/hierarchical.h"
#include "engine/staging.h"
#include "engine/stream_call.h"
#include "engine/wait.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

using std::chrono::milliseconds;

uintptr_t communicator_of(const py::object& object) {
  if (object.is_none()) return 0;
  if (py::isinstance<py::int_>(object)) return object.cast<uintptr_t>();
  return reinterpret_cast<uintptr_t>(object.cast<c10::intrusive_ptr<c10d::Backend>>().get());
}

void connect(Group& group, const std::string& name, const std::string& path, const py::object& existing,
             const std::optional<c10::intrusive_ptr<c10d::Store>>& store) {
  const auto handle = communicator_of(existing);
  unlocked([&] {
    auto& backend = Registry::instance().load(name, path);
    std::optional<TorchStore> meeting;
    if (store) meeting.emplace(*store);
    try {
      group.connect(backend, handle, meeting ? &*meeting : nullptr);
    } catch (const Error&) {
      throw;
    } catch (const py::error_already_set&) {  // of a store in Python
      throw;
    } catch (...) {  // of another package's backend
      throw Error(ErrorCode::Backend, name + ": connect() threw: " + current_error().what());
    }
  });
}

std::shared_ptr<Group> make_group(std::string name, std::vector<int> ranks, int rank, milliseconds timeout,
                                  int device) {
  GroupSpec spec{std::move(name), std::move(ranks), rank, timeout};
  spec.device.index = device;
  return std::make_shared<Group>(std::move(spec));
}

// The members of each of Lines::Part for a rank.
std::vector<std::vector<int>> members_of_lines(std::vector<std::vector<int>> lines, int rank) {
  const Lines made(std::move(lines));
  return {made.members(rank, Lines::kFirst), made.members(rank, Lines::kOuter), made.members(rank, Lines::kLast)};
}

void set_stage(Group& group, const std::shared_ptr<Group>& late) {
  group.set_stage(std::make_shared<Stage>(late), late);
}

// By backend; times in seconds.
py::dict late_issues(const Group& group) {
  py::dict all;
  if (group.stage() == nullptr) return all;
  const auto seconds = [](std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); };
  for (const auto& [backend, one] : unlocked([&] { return group.stage()->statistics(); })) {
    py::dict values;
    values["issues"] = one.delays.issues;
    values["delay"] = one.delays.issues == 0 ? 0.0 : seconds(one.delays.sum) / static_cast<double>(one.delays.issues);
    values["longest_delay"] = seconds(one.delays.longest);
    values["queued"] = one.queued;
    values["most_queued"] = one.most_queued;
    all[py::str(backend)] = values;
  }
  return all;
}

void stage(Group& group, int64_t chunk) { group.set_staging(std::make_shared<Staging>(group.stage(), chunk)); }

// The group's candidate of that name; raises KeyError.
Candidate& candidate_of(Group& group, const std::string& name) {
  auto* candidate = group.find(name);
  if (candidate == nullptr) throw py::key_error(name);
  return *candidate;
}

// "cuda" or "cpu" for a backend that enqueues on a device's streams, None for a host backend.
std::optional<std::string> streams_of(Group& group, const std::string& backend) {
  const Group::Inside inside(group);
  const auto type = candidate_of(group, backend).communicator->streams();
  return type ? std::optional<std::string>(name(*type)) : std::nullopt;
}

std::vector<std::string> candidates_of(Group& group) {
  std::vector<std::string> names;
  for (const auto& candidate : group.candidates()) names.push_back(candidate.name);
  return names;
}

// "native", "emulated" or "-" for one cell of the support matrix.
std::string support(Group& group, const std::string& backend, const std::string& op, const std::string& dtype,
                    const std::string& red, bool vectored, const std::string& device) {
  Call call;
  call.device.type = device_type(device);
  call.op = named<Op>(kOps, op);
  call.dtype = named<DType>(kDTypes, dtype);
  call.red = named<RedOp>(kReductions, red);
  call.vectored = vectored;
  const Group::Inside inside(group);
  return std::string(Decision::of(*candidate_of(group, backend).communicator, call).text());
}

// A library's thread may be waiting for the GIL.
void destroy(std::unique_ptr<Communicator> communicator) {
  if (Py_IsInitialized() == 0) return;
  const UnlockedIfHeld guard;
  communicator.reset();
}

GroupClass add_group(py::module_& module) {
  Group::destroy_with(destroy);
  GroupClass group(module, "Group", "A set of ranks and its communicators, one per backend.");
  group
      .def(py::init(&make_group), py::arg("name"), py::arg("ranks"), py::arg("rank"), py::arg("timeout"),
           py::arg("device") = 0)
      .def("_connect", connect, py::arg("backend"), py::arg("path"), py::arg("existing"), py::arg("store") = py::none())
      .def("_connect_striped", connect_striped, py::arg("first"), py::arg("second"))
      .def("_connect_hierarchy", connect_hierarchy, py::arg("backend"), py::arg("lines"), py::arg("parts"))
      .def("_streams", streams_of)
      .def("_set_stage", set_stage, py::arg("late"))
      .def("_has_stage", [](const Group& group) { return group.stage() != nullptr; })
      .def("_late_issues", late_issues)
      .def("_stage", stage, py::arg("chunk"))
      .def("_disconnect", [](Group& group, const std::string& name) { unlocked([&] { group.disconnect(name); }); })
      .def("_close",
           [](Group& group) {
             forget_handles(group);
             unlocked([&] { group.close(); });
           })
      .def("_support", support, py::arg("backend"), py::arg("op"), py::arg("dtype"), py::arg("red"),
           py::arg("vectored"), py::arg("device") = "cpu")
      .def("_has", [](Group& group, const std::string& candidate) { return group.find(candidate) != nullptr; })
      .def("rank", &Group::rank, "This process's rank in the group.")
      .def("size", &Group::size, "The number of ranks.")
      .def(
          "name", [](const Group& group) { return group.spec().name; }, "The group's name, equal on all its ranks.")
      .def_property_readonly("group_name", [](const Group& group) { return group.spec().name; })
      .def_property_readonly(
          "ranks", [](const Group& group) { return group.spec().ranks; }, "Global ranks in group order.")
      .def_property_readonly("backends", &Group::backends, "Names of the group's backends, in order of preference.")
      .def_property_readonly("candidates", candidates_of,
                             "The candidates of `auto`: the backends and their variants, such as mpi:p2p.")
      .def_property_readonly("timeout", [](const Group& group) { return group.spec().timeout; })
      .def("_group_rank", &Group::group_rank)
      .def_property_readonly("_any_form", &Group::any_form)
      .def("_set_any_form", &Group::set_any_form, py::arg("any_form"))
      .def_property_readonly("_label", [](const Group& group) { return group.label(); })
      .def("_derive", [](Group& group) { group.position().derive(); })
      .def_property_readonly("_closed", &Group::closed)
      .def("__repr__", [](const Group& group) { return "<mcr_dl group: " + group.label() + ">"; });
  return group;
}

py::list op_table() {
  py::list ops;
  for (const auto& op : kOps) {
    py::dict row;
    row["name"] = op.name;
    row["rooted"] = op.is(kRooted);
    row["reduces"] = op.is(kReduces);
    row["vectored"] = op.is(kVectored);
    row["peer"] = op.is(kPeer);
    row["cuttable"] = op.is(kCuttable);
    row["fusible"] = op.is(kFusible);
    row["compressible"] = op.is(kCompressible);
    row["hierarchical"] = op.is(kHierarchical);
    row["in_place"] = op.extent == Extent::Same;
    row["bus"] = kBuses[static_cast<std::size_t>(op.bus)];
    row["fallback"] = op.fallback == Fallback::Exchange;
    ops.append(row);
  }
  return ops;
}

py::list signature_table() {
  py::list result;
  for (const auto& signature : signatures()) {
    py::list params;
    for (const auto& p : signature.params) {
      params.append(py::make_tuple(py::handle(p.name), word_of(p.kind), p.default_value, p.keyword_only));
    }
    py::dict row;
    row["name"] = signature.name;
    row["op"] = mcr::row(signature.op).name;
    row["summary"] = signature.summary;
    row["starts"] = signature.starts;
    row["params"] = params;
    result.append(row);
  }
  return result;
}

void add_tables(py::module_& module) {
  module.def("ops", op_table, "The rows of the op table.");
  module.def("signatures", signature_table, "The public operations with their parameters.");
  module.def(
      "dtypes",
      [] {
        std::vector<std::string> names;
        for (const auto& row : kDTypes) names.emplace_back(row.name);
        return names;
      },
      "Names of the element types.");
  module.def(
      "reductions", [] { return std::vector<std::string>(kReductions.begin(), kReductions.end()); },
      "Names of the reductions.");
  module.def(
      "reduction_defined",
      [](const std::string& dtype, const std::string& red) {
        return defined(named<DType>(kDTypes, dtype), named<RedOp>(kReductions, red));
      },
      "Whether a reduction means anything on an element type.");
}

void add_registry(py::module_& module) {
  module.def("set_exceptions", [](const py::dict& classes) { set_exceptions(classes.ptr()); });
  module.def(
      "set_world", [](std::shared_ptr<Group> group) { set_world(std::move(group)); }, py::arg("group").none(true));
  module.def("world", [] { return world(); });
  module.def(
      "group_of",
      [](const py::object& handle) {
        auto* group = group_of(handle.ptr());
        return group == nullptr ? nullptr : group->shared_from_this();
      },
      "Our group behind a process group of torch; None if there is none.");
  module.def("remember_handle", [](const py::object& handle, std::shared_ptr<Group> group) {
    remember_handle(handle.ptr(), std::move(group));
  });
  module.def("handle_of",
             [](const std::shared_ptr<Group>& group) { return py::reinterpret_steal<py::object>(handle_of(group)); });
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      std::rethrow_exception(std::move(error));
    } catch (const Error&) {
      set_error();
    } catch (const ErrorAlreadySet&) {
    }
  });
  module.def("set_coalescing", [](const py::object& works, const Group* group) {
    set_coalescing(works.is_none() ? nullptr : works.ptr(), group);
  });
  module.def(
      "load_backend",
      [](const std::string& name, const std::string& path, const std::string& library) {
        unlocked([&] { Registry::instance().load(name, path, library); });
      },
      py::arg("name"), py::arg("path"), py::arg("library") = "");
  module.def(
      "add_striped", [](const std::string& first, const std::string& second) { add_striped(first, second); },
      py::arg("first"), py::arg("second"));
  module.def(
      "add_over_dimensions",
      [](const std::string& algorithm, const std::vector<std::string>& parts) {
        add_over_dimensions(algorithm, parts);
      },
      py::arg("algorithm"), py::arg("parts"));
  module.def("members_of_lines", members_of_lines, py::arg("lines"), py::arg("rank"));
  module.def("leave", [] {
    leave_process();
    WhilePythonLives::end(milliseconds(500));
  });
  module.def("prefer_high_priority", StreamPool::prefer_high_priority);
  module.def("begin_batch", [] { unlocked(begin_batch); });
  module.def("end_batch", [] { unlocked(end_batch); });
  module.def("missing_backend",
             [](const std::string& name, const std::string& reason) { Registry::instance().missing(name, reason); });
  module.def("backend_status", [] { return Registry::instance().status(); });
  module.def("drain", [](const std::vector<std::string>& names, milliseconds limit) {
    return unlocked([&] { return Registry::instance().drain(names, limit, check_signals); });
  });
  module.def("drain_groups", [](const std::vector<std::string>& labels, milliseconds limit) {
    return unlocked([&] { return mcr::drain(labels, limit, check_signals); });
  });
  module.def("end_works", [](const std::vector<std::string>& labels) { unlocked([&] { end_works(labels); }); });
  module.def("shutdown", [] { unlocked([] { Registry::instance().shutdown(); }); });
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "The C++ core of MCR-DL.";
  module.attr("__version__") = MCR_DL_VERSION;
  try {
    add_devices();
    add_work(module.ptr());
    auto group = add_group(module);
    add_tables(module);
    add_costs(module);
    add_themis(module, group);
    add_plans(module);
    add_tuning(module, group);
    add_trials(module, group);
    add_shared_tensors(module);
    add_passes(module);
    add_schedule(module);
    add_log(module);
    add_compress(module);
    add_torch_backend(module);
    NamedBackend::add(module);
    add_registry(module);
    add_watch(module);
    add_operations(module.ptr());
    install_profiler();
    py::list names;
    for (const auto& signature : signatures()) names.append(signature.name);
    module.attr("__all__") = names;  // `from mcr_dl._C import *` imports the public operations
  } catch (const ErrorAlreadySet&) {
    throw py::error_already_set();
  }
}

}  // namespace mcr::python
