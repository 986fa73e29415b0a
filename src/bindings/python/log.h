// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include "observe/position.h"
#include "observe/recorder.h"

namespace mcr::python {

/// Adds the log's interface for Python.
void add_log(pybind11::module_& module);

void find_caller();

/// Whether records or errors are to name the function that makes a call.
inline bool caller_wanted() { return Recorder::callers_wanted() || Position::detail(); }

/// Records the running Python function for this thread's next call, if it is wanted. Needs the GIL.
inline void note_caller() {
  if (caller_wanted()) find_caller();
}

}  // namespace mcr::python
