// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "runtime/work.h"

namespace mcr::python {

/// Takes the GIL by a function of Python. Once the interpreter ends, Python before 3.14 ends other threads that ask for
/// the GIL: it unwinds their stacks, which a destructor or a handler of all exceptions turns into the end of the
/// process by std::terminate(). As from Python 3.14 on, such a thread sleeps until the process ends.
template <class Take>
auto take_gil(const Take& take) noexcept {
  try {
    return take();
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
}

/// Releases the GIL for its lifetime.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() {
    take_gil([&] { PyEval_RestoreThread(state_); });
  }

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
    if (state_ != nullptr) take_gil([&] { PyEval_RestoreThread(state_); });
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
  Locked() : state_(take_gil(PyGILState_Ensure)) {}
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  ~Locked() {
    // Without it, Python, which ends, is unwinding the stack of this thread, which ran Python code: see take_gil(). (At
    // the very end PyGILState_Check() is true on every thread.)
    while (PyGILState_Check() == 0 || (Py_IsInitialized() == 0 && getpid() != gettid())) pause();
    PyGILState_Release(state_);
  }

 private:
  PyGILState_STATE state_;
};

/// Lets threads of the core release Python objects until the interpreter is about to end: a thread that waits for the
/// GIL then would be ended by Python inside a destructor, which ends the process by std::terminate().
class WhilePythonLives {
 public:
  WhilePythonLives() { users.fetch_add(1); }
  WhilePythonLives(const WhilePythonLives&) = delete;
  WhilePythonLives& operator=(const WhilePythonLives&) = delete;
  ~WhilePythonLives() { users.fetch_sub(1); }
  /// If false, the object is to be kept forever.
  explicit operator bool() const { return !ending.load(); }

  /// With the GIL, before the interpreter ends. Returns once no thread releases anything, at the latest after the
  /// limit.
  static void end(std::chrono::milliseconds limit) {
    ending.store(true);
    const Unlocked unlocked;
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (users.load() > 0 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

  /// Keeps a thread that is not the main one inside the core while the interpreter ends: for functions of which the
  /// caller takes the GIL in a destructor of its own, as torch's bindings do. Without the GIL. It returns after a while
  /// if the interpreter is still there, as the program may wait for the thread in a last step of its own.
  static void stay() noexcept {
    if (!ending.load() || getpid() == gettid()) return;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (Py_IsInitialized() != 0 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    while (Py_IsInitialized() == 0) pause();
  }

 private:
  static inline std::atomic<int> users{0};
  static inline std::atomic<bool> ending{false};
};

/// For a function that torch calls: UnlockedIfHeld, and WhilePythonLives::stay() before the GIL is taken again, also
/// after an exception.
class CalledByTorch {
 public:
  CalledByTorch() = default;
  CalledByTorch(const CalledByTorch&) = delete;
  CalledByTorch& operator=(const CalledByTorch&) = delete;
  ~CalledByTorch() { WhilePythonLives::stay(); }

 private:
  UnlockedIfHeld unlocked_;
};

/// Releases a reference, which may be null, from any thread. Once the interpreter is about to end, the object is kept.
inline void let_go(PyObject* object) {
  const WhilePythonLives lives;
  if (!lives || Py_IsInitialized() == 0) return;
  const Locked locked;
  Py_XDECREF(object);
}

}  // namespace mcr::python
