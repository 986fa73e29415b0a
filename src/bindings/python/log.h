// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include "observe/position.h"
#include "observe/recorder.h"

namespace mcr::python {

/// Adds the log's interface for Python.
void add_log(pybind11::module_& module);

void find_caller();

/// Records the running Python function for this thread's next call, if records or errors are to name it. Needs the GIL.
inline void note_caller() {
  if (Recorder::callers_wanted() || Position::detail()) find_caller();
}

}  // namespace mcr::python
