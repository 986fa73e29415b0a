// SPDX-License-Identifier: Apache-2.0
// The Python class Work.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "runtime/work.h"

namespace mcr::python {

/// Adds the class to the module.
void add_work(PyObject* module);

/// The Python object for the Work, one object as long as it lives; None for null. A new reference.
PyObject* wrap(std::shared_ptr<Work> work);

/// The Work behind a Python object; null for any other object.
std::shared_ptr<Work> work_of(PyObject* object);

}  // namespace mcr::python

/// Converts Works in arguments and results of pybind11 functions: every source with such a function includes this.
template <>
struct pybind11::detail::type_caster<std::shared_ptr<mcr::Work>> {
  PYBIND11_TYPE_CASTER(std::shared_ptr<mcr::Work>, const_name("Work"));
  bool load(handle source, bool /*convert*/) {
    value = mcr::python::work_of(source.ptr());
    return value != nullptr;
  }
  static handle cast(std::shared_ptr<mcr::Work> work, return_value_policy /*policy*/, handle /*parent*/) {
    return mcr::python::wrap(std::move(work));
  }
};
