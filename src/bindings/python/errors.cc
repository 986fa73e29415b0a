// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/errors.h"

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <new>

#include "base/error.h"
#include "bindings/python/gil.h"
#include "bindings/python/objects.h"
#include "observe/position.h"
#include "observe/stop.h"

namespace mcr::python {

namespace {

// The names of the classes in mcr_dl.base.errors, in the order of ErrorCode.
constexpr std::array kClasses = {"InvalidArgumentError",   "InvalidTypeError",        "UnsupportedError",
                                 "NotInitializedError",    "BackendUnavailableError", "BackendError",
                                 "CollectiveTimeoutError", "PeerLostError",           "DesyncError"};
static_assert(kClasses.size() == static_cast<std::size_t>(ErrorCode::Desync) + 1);

std::array<PyObject*, kClasses.size()> classes{};

PyObject* explainer = nullptr;  // never released: it is a function of a module

PyObject* exception_of(ErrorCode code) {
  PyObject* const known = classes[static_cast<std::size_t>(code)];
  return known == nullptr ? PyExc_RuntimeError : known;
}

void raise_text(PyObject* type, std::string_view text) {
  const Owner message(str_of(text));
  if (message != nullptr) PyErr_SetObject(type, message.get());
}

// Completes the error text of a call that other ranks take part in with what is known about those ranks.
void explain(const Error& error, const Subject& subject) {
  PyObject* type = exception_of(error.code());
  const bool timeout = error.code() == ErrorCode::Timeout;
  const bool lost = Position::lost(subject.label) != nullptr;
  // "N" takes ownership of the references, also if one of them is null.
  const Owner text(PyObject_CallFunction(explainer, "NNLii", str_of(error.what()), str_of(subject.label),
                                         static_cast<long long>(subject.seq), subject.message ? 1 : 0,
                                         timeout ? 1 : 0));
  if (text == nullptr) {
    keep_interrupt(PyErr_Occurred());       // Ctrl-C may have come meanwhile
    return raise_text(type, error.what());  // replaces the explainer's error
  }
  // The library's error may have come a moment before the end of the process was known. A process that ends while a
  // timeout is explained may end because of its own timeout.
  if (lost || (!timeout && Position::lost(subject.label) != nullptr)) type = exception_of(ErrorCode::PeerLost);
  PyErr_SetObject(type, text.get());
}

// A Python exception object, released with the last Error that holds it.
class Raised final : public Cause {
 public:
  explicit Raised(PyObject* exception) : exception_(exception) {}
  ~Raised() override { let_go(exception_); }

  void raise() const { PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception_)), exception_); }

 private:
  PyObject* exception_;
};

// Takes the exception that is set, with its traceback.
PyObject* take_exception() {
#if PY_VERSION_HEX >= 0x030C0000
  return PyErr_GetRaisedException();
#else
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return value;
#endif
}

// Like BaseException.add_note(), which Python 3.10 lacks, but an equal note is not repeated. An exception that accepts
// no note is left without one.
void add_note(PyObject* exception, const std::string& text) {
  Owner notes(PyObject_GetAttrString(exception, "__notes__"));
  if (notes == nullptr) {
    PyErr_Clear();
    notes.reset(PyList_New(0));
    if (notes != nullptr) PyObject_SetAttrString(exception, "__notes__", notes.get());
  }
  const Owner note(str_of(text));
  if (note != nullptr && notes != nullptr && PyList_Check(notes.get()) &&
      PySequence_Contains(notes.get(), note.get()) == 0) {
    PyList_Append(notes.get(), note.get());
  }
  PyErr_Clear();
}

}  // namespace

void set_explainer(PyObject* function) {
  Py_XINCREF(function);
  explainer = function;
}

void set_exceptions(PyObject* by_name) {
  for (std::size_t i = 0; i < classes.size(); ++i) {
    classes[i] = Py_XNewRef(PyDict_GetItemString(by_name, kClasses[i]));
  }
}

std::string exception_text(PyObject* exception) {
  const Owner words(PyObject_Str(exception));
  const auto text = utf8_of(words.get(), "");
  PyErr_Clear();
  return Py_TYPE(exception)->tp_name + (text.empty() ? "" : ": " + text);
}

Error take_error(const std::string& where) {
  PyObject* exception = take_exception();
  const auto cause = std::make_shared<const Raised>(exception);
  add_note(exception, where);
  return Error(ErrorCode::Backend, where + ": " + exception_text(exception)).caused_by(cause);
}

void keep_interrupt(PyObject* exception) {
  if (PyErr_GivenExceptionMatches(exception, PyExc_KeyboardInterrupt) != 0) PyErr_SetInterrupt();
}

void report_unraisable(const char* where) noexcept {
  const WhilePythonLives lives;
  if (!lives || Py_IsInitialized() == 0) return;
  const Locked locked;
  set_error();
  PyObject* text = PyUnicode_FromString(where);
  PyErr_WriteUnraisable(text);
  Py_XDECREF(text);
}

void set_error() noexcept {
  try {
    throw;
  } catch (const ErrorAlreadySet&) {
  } catch (pybind11::error_already_set& error) {  // from Python code that torch or the core has called
    error.restore();
  } catch (const Error& error) {
    if (const auto* raised = dynamic_cast<const Raised*>(error.cause().get())) return raised->raise();
    const auto* subject = error.subject();
    // After a desync, report that as the cause.
    if (subject != nullptr && Stop::requested()) {
      return raise_text(exception_of(ErrorCode::Desync), Stop::take());
    }
    if (subject == nullptr || explainer == nullptr) return raise_text(exception_of(error.code()), error.what());
    explain(error, *subject);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    raise_text(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "unknown C++ exception");
  }
}

}  // namespace mcr::python
