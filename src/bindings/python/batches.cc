// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include "bindings/python/calls.h"
#include "bindings/python/errors.h"
#include "bindings/python/gil.h"
#include "engine/stream_call.h"

namespace mcr::python {

namespace {

thread_local std::unique_ptr<Batch> batch;

}  // namespace

void begin_batch() { batch = std::make_unique<Batch>(); }

void end_batch() {
  if (const auto ended = std::move(batch)) ended->end();
}

void check_signals() {
  const WhilePythonLives lives;
  if (!lives) return;
  const Locked locked;
  if (PyErr_CheckSignals() != 0) throw ErrorAlreadySet{};
}

}  // namespace mcr::python
