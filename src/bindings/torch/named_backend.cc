// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/named_backend.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <torch/csrc/PyInterpreter.h>

#include <memory>
#include <utility>

#include "bindings/python/arguments.h"
#include "bindings/python/gil.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

// torch passes such objects on to the threads of a backward pass, so a block around one applies to them.
using Objects = at::impl::ThreadLocalPythonObjects;
const std::string kKey = "mcr_dl.use";

py::object current() {
  if (!Objects::contains(kKey)) return py::none();
  return py::reinterpret_borrow<py::object>(Objects::get(kKey)->ptr(getPyInterpreter()));
}

}  // namespace

std::atomic<int> NamedBackend::blocks_{0};

NamedBackend::None::None() : before_(any() ? exchange(py::none()) : py::none()) {}

NamedBackend::None::~None() {
  if (!before_.is_none()) exchange(before_);
}

Candidate* NamedBackend::candidate(Group& group) {
  const Locked locked;
  const auto name = current();
  return name.is_none() ? nullptr : candidate_argument(group, name.ptr());
}

// Returns the previous name; None means no name. Counts nothing: autograd's threads have the name of a block that
// another thread has begun.
py::object NamedBackend::exchange(const py::object& name) {
  auto before = current();
  Objects::set(kKey, std::make_shared<c10::SafePyObject>(py::object(name).release().ptr(), getPyInterpreter()));
  return before;
}

// Begins or ends a block; otherwise as exchange().
py::object NamedBackend::set(const py::object& name) {
  auto before = exchange(name);
  blocks_ += static_cast<int>(!name.is_none()) - static_cast<int>(!before.is_none());
  return before;
}

std::function<void()> NamedBackend::kept(std::function<void()> action) {
  if (!any()) return action;
  const Locked locked;
  const auto name = current();
  if (name.is_none()) return action;
  // Shared, so that copies need no GIL.
  auto named = std::make_shared<c10::SafePyObject>(py::object(name).release().ptr(), getPyInterpreter());
  struct Block {
    explicit Block(const c10::SafePyObject& name) {
      const Locked held;
      before = set(py::reinterpret_borrow<py::object>(name.ptr(getPyInterpreter())));
    }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block() {
      const Locked held;
      set(before);
      before = {};
    }
    py::object before;
  };
  return [named = std::move(named), action = std::move(action)] {
    const Block block(*named);
    action();
  };
}

void NamedBackend::add(py::module_& module) { module.def("name_backend", set, py::arg("name").none(true)); }

}  // namespace mcr::python
