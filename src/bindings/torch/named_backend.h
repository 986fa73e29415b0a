// SPDX-License-Identifier: Apache-2.0
// The backend that mcr_dl.use() names for the calls inside a block.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <functional>

#include "group/group.h"

namespace mcr::python {

/// Applies to a thread, and to the threads on which autograd works for it.
class NamedBackend {
 public:
  /// Within its lifetime this thread has no name: for Python code of calls, such as a pass, that different threads of
  /// the ranks may run, with and without a block around them. With the GIL.
  class None {
   public:
    None();
    None(const None&) = delete;
    None& operator=(const None&) = delete;
    ~None();

   private:
    pybind11::object before_;
  };

  /// False if no thread has one: the usual case, which costs one load.
  static bool any() noexcept { return blocks_.load(std::memory_order_relaxed) != 0; }
  /// The candidate for this thread's calls on the group; null: the group's choice. Throws like a call that names the
  /// backend.
  static Candidate* candidate(Group& group);
  /// The action with this thread's backend, on whichever thread it runs: all ranks call the same one then.
  static std::function<void()> kept(std::function<void()> action);

  static void add(pybind11::module_& module);

 private:
  static pybind11::object exchange(const pybind11::object& name);
  static pybind11::object set(const pybind11::object& name);
  static std::atomic<int> blocks_;
};

}  // namespace mcr::python
