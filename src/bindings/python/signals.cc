// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/signals.h"

#include "bindings/python/errors.h"
#include "bindings/python/gil.h"

namespace mcr::python {

void check_signals() {
  const WhilePythonLives lives;
  if (!lives) return;
  const Locked locked;
  if (PyErr_CheckSignals() != 0) throw ErrorAlreadySet{};
}

}  // namespace mcr::python
