// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include "observe/position.h"
#include "observe/recorder.h"

namespace mcr::python {

/// The log as Python reads it.
void add_log(pybind11::module_& module);

void find_caller();

/// Notes the running Python function, if records or errors shall name it, for the call that this thread is about to
/// make. Needs the GIL.
inline void note_caller() {
  if (Recorder::callers_wanted() || Position::detail()) find_caller();
}

}  // namespace mcr::python
