// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <optional>

#include "runtime/work.h"

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

/// Releases the GIL when the core asks for it, until the end of its lifetime.
class UnlockedLater final : public CallerLock {
 public:
  UnlockedLater() = default;
  UnlockedLater(const UnlockedLater&) = delete;
  UnlockedLater& operator=(const UnlockedLater&) = delete;
  ~UnlockedLater() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  void release() override {
    if (state_ == nullptr) state_ = PyEval_SaveThread();
  }

 private:
  PyThreadState* state_ = nullptr;
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
