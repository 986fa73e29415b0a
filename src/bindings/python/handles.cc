// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/handles.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <unordered_map>
#include <utility>

#include "base/immortal.h"
#include "bindings/torch/backend.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

// Guarded by the GIL. The keys are references: as long as an entry exists, no other object has its address.
std::unordered_map<PyObject*, std::shared_ptr<Group>>& handles() {
  static auto& map = immortal<std::unordered_map<PyObject*, std::shared_ptr<Group>>>();
  return map;
}

// Under TORCH_DISTRIBUTED_DEBUG=DETAIL torch wraps the backend in one of its own.
std::shared_ptr<Group> group_behind(py::object backend) {
  if (py::hasattr(backend, "wrapped_pg")) backend = backend.attr("wrapped_pg");
  return py::isinstance<TorchBackend>(backend) ? backend.cast<TorchBackend&>().group() : nullptr;
}

std::shared_ptr<Group> find(c10d::ProcessGroup& process_group) {
  for (const auto& device : process_group.getDeviceTypes()) {
    if (auto group = group_behind(py::cast(process_group.getBackend(device.type())))) return group;
  }
  return nullptr;
}

// A new reference, or null.
PyObject* remembered(const std::shared_ptr<Group>& group) {
  for (const auto& [object, known] : handles()) {
    if (known == group) return Py_NewRef(object);
  }
  return nullptr;
}

// A process group that torch has made is otherwise remembered at its first use in mcr_dl, which may be on some ranks
// only. torch does not register parts from ProcessGroup.split_group.
void remember_registered() {
  const py::object world = py::module_::import("torch.distributed.distributed_c10d").attr("_world");
  const py::object registered = py::getattr(world, "pg_map", py::none());
  if (registered.is_none()) return;
  for (const py::handle each : py::list(registered)) {
    try {
      group_of(each.ptr());
    } catch (const std::exception&) {
      // A group of another backend, which cannot tell its backends: it is not the one that is looked for.
    }
  }
}

}  // namespace

Group* group_of(PyObject* object) {
  const auto known = handles().find(object);
  if (known != handles().end()) return known->second.get();
  const py::handle handle(object);
  if (py::isinstance<Group>(handle)) return handle.cast<Group*>();
  if (!py::isinstance<c10d::ProcessGroup>(handle)) return nullptr;
  auto group = find(*handle.cast<c10d::ProcessGroup*>());
  auto* found = group.get();
  if (found != nullptr && !found->closed()) remember_handle(object, std::move(group));
  return found;
}

std::string described(PyObject* object) {
  return py::module_::import("mcr_dl.runtime.handles").attr("described")(py::handle(object)).cast<std::string>();
}

PyObject* handle_of(const std::shared_ptr<Group>& group) {
  auto* found = remembered(group);
  if (found == nullptr) {
    remember_registered();
    found = remembered(group);
  }
  return found == nullptr ? py::cast(group).release().ptr() : found;
}

void remember_handle(PyObject* process_group, std::shared_ptr<Group> group) {
  if (handles().emplace(process_group, std::move(group)).second) Py_INCREF(process_group);
}

void forget_handles(const Group& group) {
  std::vector<py::object> left;  // outlives the loop: dropping a process group may run code that reads the map
  for (auto entry = handles().begin(); entry != handles().end();) {
    if (entry->second.get() != &group) {
      ++entry;
      continue;
    }
    left.push_back(py::reinterpret_steal<py::object>(entry->first));
    entry = handles().erase(entry);
  }
}

}  // namespace mcr::python
