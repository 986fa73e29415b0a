// SPDX-License-Identifier: Apache-2.0
// Each function adds one part of the core's interface for Python.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace mcr {
class Group;
}

namespace mcr::python {

using GroupClass = pybind11::class_<Group, std::shared_ptr<Group>>;

/// Adds topologies, cost models, and schedules to simulate with them.
void add_costs(pybind11::module_& module);

/// Adds the plans of collectives on networks of several dimensions.
void add_themis(pybind11::module_& module, GroupClass& group);

/// Adds the planner of a step's calls.
void add_plans(pybind11::module_& module);

/// Adds what the Python part of tuning needs: setting a group's cost curves and rules, querying its choices, comparing
/// curves.
void add_tuning(pybind11::module_& module, GroupClass& group);

/// Adds the trials of candidates (choose/trials.h): turning them on, their reports, which a thread in Python makes the
/// ranks agree on, and their results.
void add_trials(pybind11::module_& module, GroupClass& group);

/// Adds the memory of tensors that other processes can map (base/shared_heap.h).
void add_shared_tensors(pybind11::module_& module);

/// Adds a group's chain of passes for Python: setting it, and passes that are Python objects.
void add_passes(pybind11::module_& module);

/// Adds the classes with which Python code sets plans of iterations. Call after add_passes().
void add_schedule(pybind11::module_& module);

/// Adds the compression pass, the codecs, and codecs that are Python objects. Call after add_passes().
void add_compress(pybind11::module_& module);

/// Adds what mcr_dl.watch reads and does: positions, activities, running operations, and ways to end them.
void add_watch(pybind11::module_& module);

}  // namespace mcr::python
