// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <optional>

namespace mcr::python {

/// Releases the GIL for its lifetime.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

/// Like Unlocked on threads that hold the GIL, and nothing on others: for code that torch calls with and without it.
class UnlockedIfHeld {
 public:
  UnlockedIfHeld() {
    if (PyGILState_Check() != 0) unlocked_.emplace();
  }

 private:
  std::optional<Unlocked> unlocked_;
};

/// Takes the GIL for its lifetime, from any thread.
class Locked {
 public:
  Locked() : state_(PyGILState_Ensure()) {}
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  ~Locked() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

}  // namespace mcr::python
