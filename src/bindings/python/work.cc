// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/work.h"

#include <pybind11/stl.h>
#include <structmember.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <chrono>
#include <optional>
#include <vector>

#include "bindings/python/arguments.h"
#include "bindings/python/errors.h"
#include "bindings/python/gil.h"
#include "bindings/python/kept_tensors.h"
#include "bindings/python/objects.h"
#include "bindings/python/signals.h"
#include "bindings/python/unlocked.h"
#include "bindings/torch/completions.h"
#include "bindings/torch/named_backend.h"
#include "engine/wait.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

using std::chrono::milliseconds;

struct WorkObject {
  PyObject_HEAD PyObject* weak_references;
  std::shared_ptr<Work> work;
};

PyTypeObject* type = nullptr;

// The memory of destroyed objects, for reuse. Guarded by the GIL.
constexpr std::size_t kSpare = 64;
std::array<WorkObject*, kSpare> spare;
std::size_t spares = 0;

const std::shared_ptr<Work>& of(PyObject* self) { return reinterpret_cast<WorkObject*>(self)->work; }

// Runs a method's body and turns C++ exceptions into Python exceptions.
template <class Body>
PyObject* method(Body body) noexcept {
  try {
    return body();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (...) {
    set_error();
  }
  return nullptr;
}

template <class Value>
PyObject* object(Value&& value) {
  return py::cast(std::forward<Value>(value)).release().ptr();
}

// ---- waiting

// The timeout of wait(), its only parameter; nothing: the call's own.
std::optional<milliseconds> limit_of(PyObject* const* args, Py_ssize_t count, PyObject* names) {
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  const bool known = named == 0 || PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "timeout") == 0;
  if (count + named > 1 || !known) {
    PyErr_SetString(PyExc_TypeError, "wait(): expected no argument but `timeout`");
    throw ErrorAlreadySet{};
  }
  if (count + named == 0 || args[0] == Py_None) return std::nullopt;
  const auto limit = duration_of(args[0]);
  if (!limit) {
    throw Error(ErrorCode::InvalidType,
                "wait(): timeout: expected a datetime.timedelta, seconds or None, got " + represented(args[0]));
  }
  if (limit->count() < 0) {
    throw Error(ErrorCode::InvalidArgument,
                "wait(): timeout: expected a time of 0 or more, got " + represented(args[0]));
  }
  return limit->count() > 0 ? limit : std::nullopt;  // 0: as in torch
}

PyObject* wait_for(const std::shared_ptr<Work>& owner, std::optional<milliseconds> limit) {
  if (!owner->over() || owner->failed() || owner->wait_time() != nullptr) {
    const auto work = owner;  // this object may be destroyed while other threads run
    UnlockedLater lock;
    wait(*work, limit.value_or(work->limit()), check_signals, &lock);
  }
  return Py_NewRef(Py_True);
}

PyObject* wait_method(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return method([&] { return wait_for(of(self), limit_of(args, count, names)); });
}

PyObject* synchronize(PyObject* self, PyObject*) {
  return method([&] {
    Py_DECREF(wait_for(of(self), std::nullopt));
    return Py_NewRef(Py_None);
  });
}

bool polled(PyObject* self) {
  const auto work = of(self);
  return work->finished() || unlocked([&] { return work->poll(); });
}

PyObject* is_completed(PyObject* self, PyObject*) {
  return method([&] { return PyBool_FromLong(polled(self) ? 1 : 0); });
}

PyObject* is_success(PyObject* self, PyObject*) {
  return method([&] { return PyBool_FromLong(polled(self) && !of(self)->failed() ? 1 : 0); });
}

// ---- results

// The Python exception of a failed Work, created but not raised.
PyObject* exception(PyObject* self, PyObject*) {
  return method([&] {
    if (!of(self)->failed()) return Py_NewRef(Py_None);
    try {
      of(self)->rethrow();
    } catch (...) {
      set_error();
    }
    const py::error_already_set error;
    return error.value().inc_ref().ptr();
  });
}

PyObject* source_rank(PyObject* self, PyObject*) {
  return method([&] { return PyLong_FromLong(of(self)->source()); });
}

PyObject* result(PyObject* self, PyObject*) {
  return method([&] { return object(KeptTensors::results_of(*of(self))); });
}

PyObject* get_future(PyObject* self, PyObject*) {
  return method(
      [&] { return py::module_::import("mcr_dl.base.futures").attr("future_of")(py::handle(self)).release().ptr(); });
}

PyObject* stream(PyObject* self, PyObject*) {
  return method([&] {
    const auto* point = of(self)->point();
    const bool on_device = point != nullptr && point->stream().device.type != DeviceType::CPU;
    if (!on_device || point->failure()) return Py_NewRef(Py_None);
    return object(std::pair(point->stream().device.index, point->stream().id));
  });
}

using ResultFuture = c10::intrusive_ptr<c10::ivalue::Future>;

// Runs on the caller's thread if the Work is complete, so that its future is complete too. `future`, which may be null:
// gets the result instead if the Work succeeds later. No Python code is around its callbacks then: if Python ends while
// one of them runs, it unwinds the stack of this thread, and torch's bindings take the GIL in destructors.
void call_on_done(const std::shared_ptr<Work>& work, py::function callback, const ResultFuture& future) {
  if (work->completed()) {
    callback();
    return;
  }
  // Shared, so that copying the std::function needs no GIL; its only run empties it under the GIL.
  auto owned = std::make_shared<py::function>(std::move(callback));
  auto action = NamedBackend::kept([owned = std::move(owned), future, work] {
    const bool succeeded = future != nullptr && !work->failed();
    {
      const Locked locked;
      try {
        if (!succeeded) (*owned)();
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("mcr_dl Work callback");
      }
      owned->release().dec_ref();
    }
    if (succeeded) future->markCompleted(c10::IValue(KeptTensors::results_of(*work)));
  });
  const Unlocked guard;
  auto& completions = Completions::instance();
  work->set_awaited();
  work->on_done([&completions, action = std::move(action)] { completions.run(action); });
}

PyObject* on_done(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return method([&] {
    if (count < 1 || count > 2 || PyCallable_Check(args[0]) == 0) {
      PyErr_SetString(PyExc_TypeError, "_on_done(): expected a function, and perhaps a future");
      throw ErrorAlreadySet{};
    }
    ResultFuture future;
    if (count == 2) future = py::cast<std::shared_ptr<torch::jit::PythonFutureWrapper>>(py::handle(args[1]))->fut;
    const auto work = of(self);
    call_on_done(work, py::reinterpret_borrow<py::function>(args[0]), future);
    return Py_NewRef(Py_None);
  });
}

PyObject* represent(PyObject* self) {
  return method([&] {
    const auto& work = *of(self);
    return str_of("<mcr_dl.Work " + work.what() + (work.completed() ? ": complete>" : ": running>"));
  });
}

// ---- the type

void deallocate(PyObject* self) {
  auto* object = reinterpret_cast<WorkObject*>(self);
  object->work->handle() = nullptr;  // first: the code below may ask for it
  if (object->weak_references != nullptr) PyObject_ClearWeakRefs(self);
  object->work.~shared_ptr();
  if (spares < kSpare) {
    spare[spares++] = object;
  } else {
    PyObject_Free(self);
  }
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(WorkObject, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyMethodDef methods[] = {
    {"wait", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(wait_method)), METH_FASTCALL | METH_KEYWORDS,
     "wait($self, /, timeout=None)\n--\n\n"
     "Waits until the operation is complete and returns True. For an operation on a device's streams, the current "
     "stream waits instead of the host, and `timeout` has no effect. Raises the operation's error, or "
     "CollectiveTimeoutError after `timeout` (a timedelta or seconds; None, 0: the call's); the operation then "
     "goes on, and wait() may be called again. A `timeout` longer than the call's own extends that one, except for "
     "collectives on gloo, where the library ends them."},
    {"is_completed", is_completed, METH_NOARGS,
     "is_completed($self, /)\n--\n\nTrue once the operation has ended, also with an error."},
    {"is_success", is_success, METH_NOARGS,
     "is_success($self, /)\n--\n\nTrue once the operation is complete without an error."},
    {"exception", exception, METH_NOARGS, "exception($self, /)\n--\n\nThe error of a failed operation, or None."},
    {"synchronize", synchronize, METH_NOARGS, "synchronize($self, /)\n--\n\nAs wait()."},
    {"source_rank", source_rank, METH_NOARGS,
     "source_rank($self, /)\n--\n\nThe group rank that a completed receive came from."},
    {"result", result, METH_NOARGS, "result($self, /)\n--\n\nThe tensors that hold the result."},
    {"get_future", get_future, METH_NOARGS,
     "get_future($self, /)\n--\n\nA torch.futures.Future of the tensors that hold the result."},
    {"_stream", stream, METH_NOARGS,
     "_stream($self, /)\n--\n\n(device index, torch's stream id) of what a device does behind the operation; None "
     "for the host's."},
    {"_on_done", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(on_done)), METH_FASTCALL,
     "_on_done($self, callback, future=None, /)\n--\n\nCalls a function of no arguments once the operation is "
     "complete. If it succeeds later, gives its result to the torch.futures.Future instead, if there is one."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("The handle of an asynchronous operation (torch.distributed.Work).")},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_repr, reinterpret_cast<void*>(represent)},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {0, nullptr},
};

PyType_Spec spec = {"mcr_dl._C.Work", sizeof(WorkObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                    slots};

}  // namespace

void add_work(PyObject* module) {
  type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (type == nullptr || PyModule_AddObjectRef(module, "Work", reinterpret_cast<PyObject*>(type)) != 0)
    throw ErrorAlreadySet{};
}

PyObject* wrap(std::shared_ptr<Work> work) {
  if (work == nullptr) return Py_NewRef(Py_None);
  if (work->handle() != nullptr) return Py_NewRef(static_cast<PyObject*>(work->handle()));
  auto* made = spares > 0 ? PyObject_Init(reinterpret_cast<PyObject*>(spare[--spares]), type)
                          : reinterpret_cast<PyObject*>(PyObject_New(WorkObject, type));
  if (made == nullptr) throw ErrorAlreadySet{};
  auto* object = reinterpret_cast<WorkObject*>(made);
  object->weak_references = nullptr;
  work->handle() = made;
  new (&object->work) std::shared_ptr<Work>(std::move(work));
  return made;
}

std::shared_ptr<Work> work_of(PyObject* object) {
  return object != nullptr && Py_TYPE(object) == type ? of(object) : nullptr;
}

}  // namespace mcr::python
