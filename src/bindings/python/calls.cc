// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/calls.h"

#include <structmember.h>

#include <array>
#include <string>
#include <utility>

#include "base/immortal.h"
#include "bindings/python/arguments.h"
#include "bindings/python/devices.h"
#include "bindings/python/errors.h"
#include "bindings/python/gil.h"
#include "bindings/python/handles.h"
#include "bindings/python/kept_tensors.h"
#include "bindings/python/log.h"
#include "bindings/python/objects.h"
#include "bindings/python/signals.h"
#include "bindings/python/signature.h"
#include "bindings/python/tensors.h"
#include "bindings/python/work.h"
#include "bindings/torch/named_backend.h"
#include "engine/dispatch.h"
#include "engine/flatten.h"
#include "engine/validate.h"
#include "runtime/registry.h"

namespace mcr::python {

namespace {

// The default group, and how many calls use it by its address. Guarded by the GIL.
struct World {
  std::shared_ptr<Group> group;
  std::vector<std::shared_ptr<Group>> former;  // which another thread has replaced during these calls
  int64_t calls = 0;
};

// Never destroyed: during process exit a thread that is stuck in a library may still use it.
World& default_world = immortal<World>();
[[gnu::tls_model("initial-exec")]] constinit thread_local PyObject* coalescing = nullptr;
constinit thread_local const Group* coalescing_group = nullptr;

// Turns the arguments of one call into a Call and a Extras.
class Binder {
 public:
  Binder(const Signature& signature, PyObject** slots) : signature_(signature), slots_(slots) {
    extras_.names = &signature.names;
  }
  Binder(const Binder&) = delete;
  Binder& operator=(const Binder&) = delete;
  ~Binder() {
    if (!in_world_ || --default_world.calls != 0 || default_world.former.empty()) [[likely]]
      return;
    const auto unused = std::move(default_world.former);  // destroyed last: that may release the GIL
    default_world.former.clear();
  }

  /// False: this process is not a member of the group.
  bool bind() {
    if (!find_group()) return false;
    call_.op = signature_.op;
    PyObject* flag = slot(signature_.async_op);
    asynchronous_ = signature_.starts || (flag != nullptr && truth(flag, "async_op"));
    with_name([&] {
      find_backend();
      find_root();
      for (const auto& [index, always] : signature_.rest) {
        PyObject* const value = slots_[index] == Py_None ? nullptr : slots_[index];
        if (always || value != nullptr) take(signature_.params[index], value);
      }
      finish();
    });
    return true;
  }

  // After bind(), instead of issue(): the rest of the checks of the core.
  void check() {
    with_name([&] { validate(call_, extras_, group_->rank(), group_->size()); });
  }

  PyObject* issue() {
    extras_.keeper = this;
    extras_.keep = [](void* keeper) -> std::shared_ptr<void> { return static_cast<Binder*>(keeper)->kept(); };
    extras_.release = KeptTensors::release_of;
    const auto guard = tensors_.stream_guard();
    tensors_.place_factor(call_);
    const bool in_block = coalescing != nullptr && coalescing_group == group_;
    if (in_block && (asynchronous_ || coalesces())) [[unlikely]]
      return coalesce();
    if (asynchronous_) return wrap(start_call());
    const int source = run_call();
    if (call_.op != Op::recv) Py_RETURN_NONE;
    const int sender = source < 0 ? call_.root : source;  // none if a pass has answered a receive from any rank
    return PyLong_FromLong(sender < 0 ? -1 : group_->spec().ranks[static_cast<std::size_t>(sender)]);
  }

 private:
  // Adds the call to the text of an error.
  template <class Step>
  void with_name(const Step& step) {
    try {
      step();
    } catch (const Error& error) {
      const auto backend = chosen_ == nullptr ? group_->any_backend() : chosen_->name;
      throw Error(error.code(), describe(std::string(backend), signature_.name, group_->label()) + ": " + error.what());
    }
  }

  const char* name(std::size_t i) const { return signature_.params[i].text; }
  PyObject* slot(std::size_t i) const { return i < signature_.params.size() ? slots_[i] : nullptr; }

  bool find_group() {
    PyObject* object = slot(signature_.group);
    if (object == nullptr || object == Py_None) {
      if (!default_world.group) {
        throw Error(ErrorCode::NotInitialized,
                    signature_.name + ": the default group has not been initialized; call init_process_group() first");
      }
      group_ = default_world.group.get();
      in_world_ = true;
      ++default_world.calls;
      return true;
    }
    if (is_no_member(object)) return false;
    group_ = group_of(object);
    if (group_ == nullptr) {
      throw Error(ErrorCode::InvalidType,
                  signature_.name + ": group: expected a process group of mcr_dl or None, got " + described(object));
    }
    if (!group_->closed()) return true;
    throw Error(ErrorCode::NotInitialized,
                signature_.name + ": " + destroyed_group().what() + " (" + group_->label() + ")");
  }

  void find_backend() {
    PyObject* object = slot(signature_.backend);
    if (object != nullptr && object != Py_None) {
      chosen_ = candidate_argument(*group_, object, call_.coding);
    } else if (NamedBackend::any()) [[unlikely]] {
      chosen_ = NamedBackend::candidate(*group_);
    }
  }

  // The root decides which other arguments a rank must have, so it is parsed first.
  void find_root() {
    const std::size_t global = signature_.root;
    if (global == signature_.params.size()) return;
    const std::size_t local = signature_.group_root;
    const char* local_name = local < signature_.params.size() ? name(local) : nullptr;
    call_.root = root_rank(*group_, signature_.op, {name(global), slots_[global]}, {local_name, slot(local)});
    is_root_ = call_.root == group_->rank();
  }

  void take(const Param& param, PyObject* value) {  // null: not given, or None
    const char* name = param.text;
    switch (param.kind) {
      case Kind::Tensor:
        call_.out = tensor(value, name, Use::InPlace);
        break;
      case Kind::Input:
        if (value != nullptr || !optional_input()) call_.in = tensor(value, name, Use::Send);
        break;
      case Kind::Output:
        if (value != nullptr || !optional_output()) call_.out = tensor(value, name, Use::Receive);
        break;
      case Kind::Inputs:
        take_list(value, name, Use::Send);
        break;
      case Kind::Outputs:
        take_list(value, name, Use::Receive);
        break;
      case Kind::Reduction:
        take_reduction(value);
        break;
      case Kind::Tag:
        call_.tag = tag(value, name);
        break;
      case Kind::InCounts:
        vectored(call_.in_counts, value, name);
        break;
      case Kind::OutCounts:
        vectored(call_.out_counts, value, name);
        break;
      case Kind::InDispls:
        vectored(call_.in_displs, value, name);
        break;
      case Kind::OutDispls:
        vectored(call_.out_displs, value, name);
        break;
      case Kind::InSplits:
        in_splits_ = value;
        break;
      case Kind::OutSplits:
        out_splits_ = value;
        break;
      case Kind::Timeout:
        call_.timeout = milliseconds(value, name);
        break;
      case Kind::SizeHint:
        call_.size_hint = not_negative(value, name, "0 or more bytes");
        break;
      case Kind::Codec:
        take_codec(value);
        break;
      case Kind::Priority:
        call_.priority = priority(value, name);
        break;
      case Kind::Key:
        call_.key = Registry::instance().keep_key(std::string(string(value, name, "a string")));
        break;
      case Kind::Group:
      case Kind::Backend:
      case Kind::AsyncOp:
      case Kind::Root:
      case Kind::GroupRoot:
      case Kind::Ignored:
        break;
    }
  }

  static int tag(PyObject* value, const char* name) {
    const int64_t number = integer(value, name);
    if (number >= 0 && number <= INT_MAX) return static_cast<int>(number);
    throw Error(ErrorCode::InvalidArgument,
                std::string(name) + ": expected 0 to " + std::to_string(INT_MAX) + ", got " + std::to_string(number));
  }

  static int32_t priority(PyObject* value, const char* name) {
    const int64_t number = integer(value, name);
    if (std::in_range<int32_t>(number)) return static_cast<int32_t>(number);
    throw Error(ErrorCode::InvalidArgument,
                std::string(name) + ": expected an integer of 32 bits, got " + std::to_string(number));
  }

  void take_codec(PyObject* value) {
    if (call_.coding != nullptr) {
      throw Error(ErrorCode::InvalidArgument, "codec: expected no codec, as backend='...|" + call_.coding->text +
                                                  "' names one, got " + represented(value));
    }
    call_.coding = &coding(value);
  }

  void take_reduction(PyObject* value) {
    call_.red = reduction(value);
    if (call_.red == RedOp::PREMUL_SUM) call_.factor = tensors_.take_factor(premul_factor(value));
  }

  std::shared_ptr<KeptTensors> kept() const {
    TensorList results;
    if (out_ != nullptr) results.push_back(*out_);
    results.append(out_list_.begin(), out_list_.end());
    return KeptTensors::of(std::move(results), tensors_, out_);
  }

  // gatherv's output and scatterv's input exist only on the root.
  bool optional_input() const { return on_root_alone(Extent::Scatter); }
  bool optional_output() const { return on_root_alone(Extent::Gather); }
  bool on_root_alone(Extent extent) const {
    return row(call_.op).is(kRooted) && row(call_.op).extent == extent && !is_root_;
  }

  Buffer tensor(PyObject* value, const char* name, Use use) {
    const auto& tensor = tensors_.get(value == nullptr ? Py_None : value, name, use);
    (use == Use::Send ? in_ : out_) = &tensor;
    return tensors_.memory(tensor, use);
  }

  void take_list(PyObject* value, const char* name, Use use) {
    const bool sends = use == Use::Send;
    const bool rooted = row(call_.op).is(kRooted);
    if (rooted && !is_root_) {
      const bool empty = value == nullptr || (PySequence_Check(value) != 0 && PySequence_Size(value) == 0);
      PyErr_Clear();
      if (empty) return;
      throw Error(ErrorCode::InvalidArgument,
                  std::string(name) + ": expected None on a rank that is not the root, got a value");
    }
    if (value != nullptr && Tensors::is(value)) {
      (sends ? call_.in : call_.out) = tensor(value, name, use);
    } else {
      auto list = tensors_.list(value == nullptr ? Py_None : value, name, group_->size(), use);
      // Only the list, which is equal on all ranks: a rank whose own tensor fits its entry would otherwise wait for one
      // whose tensor does not.
      if (row(call_.op).extent != Extent::Exchange) require_even(list.blocks, name, row(call_.op).name);
      (sends ? extras_.in_blocks : extras_.out_blocks) = std::move(list.blocks);
      if (!sends) out_list_ = std::move(list.tensors);
    }
  }

  void vectored(std::span<const int64_t>& span, PyObject* value, const char* name) {
    call_.vectored = true;
    if (value != nullptr) span = extras_.keep_counts(integers(value, name));
  }

  void finish() {
    tensors_.describe(call_, extras_);
    if (in_splits_ == nullptr && out_splits_ == nullptr) return;
    call_.vectored = true;
    call_.in_counts = extras_.keep_counts(split_counts(in_splits_, signature_.names.in_counts, *in_, group_->size()));
    call_.out_counts =
        extras_.keep_counts(split_counts(out_splits_, signature_.names.out_counts, *out_, group_->size()));
  }

  // The tensors are kept before the GIL is released: new references to Python objects need it.
  std::shared_ptr<Work> start_call() {
    extras_.kept = kept();
    extras_.keep = nullptr;
    UnlockedLater lock;
    if (has_lists()) lock.release();
    auto work = start(*group_, chosen_, call_, extras_, check_signals, &lock);
    if (tensors_.stream()) work->set_external_stream();
    return work;
  }

  int run_call() {
    UnlockedLater lock;
    if (has_lists()) lock.release();
    return run(*group_, chosen_, call_, extras_, check_signals, &lock);
  }

  // These may be copied at once, before the core knows the operation's size.
  bool has_lists() const { return !extras_.in_blocks.empty() || !extras_.out_blocks.empty(); }

  // Whether a blocking call ends with its block: as in torch, those of three functions; on devices others too, as they
  // only enqueue work. No call whose result the host reads.
  bool coalesces() const {
    const bool reads = call_.op == Op::recv || call_.op == Op::barrier;
    if (call_.device.type != DeviceType::CPU) return !reads;
    const auto& op = row(call_.op);
    const bool to_all = !op.is(kRooted) && !op.is(kPeer) && op.extent != Extent::None && op.extent != Extent::Exchange;
    return to_all && !call_.vectored && !has_lists();
  }

  PyObject* coalesce() {
    const Owner work(wrap(start_call()));
    if (work == nullptr || PyList_Append(coalescing, work.get()) != 0) throw ErrorAlreadySet{};
    return Py_NewRef(asynchronous_ ? work.get() : Py_None);
  }

  const Signature& signature_;
  PyObject** slots_;
  Group* group_ = nullptr;
  Candidate* chosen_ = nullptr;
  bool in_world_ = false;  // the default group is kept for this call
  bool asynchronous_ = false;
  bool is_root_ = false;
  Tensors tensors_;
  Call call_;
  Extras extras_;
  const at::Tensor* in_ = nullptr;
  const at::Tensor* out_ = nullptr;
  std::vector<at::Tensor> out_list_;
  PyObject* in_splits_ = nullptr;
  PyObject* out_splits_ = nullptr;
};

// As in torch: warns and does nothing.
PyObject* not_a_member(const Signature& signature) {
  const auto text = "Running " + signature.name + " on a rank which does not belong to the given group.";
  if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 1) != 0) return nullptr;
  if (signature.op == Op::recv && !signature.starts) return PyLong_FromLong(-1);
  Py_RETURN_NONE;
}

// ---- the callable's type: a vectorcall is all that happens between the interpreter and the Binder

struct Operation {
  PyObject_HEAD vectorcallfunc call;
  const Signature* signature;
  PyObject* dict;  // __doc__, __signature__, __module__: set from Python
};

PyObject* call_operation(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  const auto& signature = *reinterpret_cast<Operation*>(self)->signature;
  std::array<PyObject*, kMaxParams> slots{};
  try {
    arrange(signature, args, PyVectorcall_NARGS(nargsf), kwnames, slots.data());
    note_caller();
    Binder binder(signature, slots.data());
    return binder.bind() ? binder.issue() : not_a_member(signature);
  } catch (...) {
    set_error();
    return nullptr;
  }
}

// Raises what the call with these arguments would raise, but for faults that only its backend finds. Sends nothing.
PyObject* check_operation(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  const auto& signature = *reinterpret_cast<Operation*>(self)->signature;
  std::array<PyObject*, kMaxParams> slots{};
  try {
    arrange(signature, args, count, kwnames, slots.data());
    Binder binder(signature, slots.data());
    if (binder.bind()) binder.check();
    Py_RETURN_NONE;
  } catch (...) {
    set_error();
    return nullptr;
  }
}

PyObject* name_of(PyObject* self, void*) {
  return PyUnicode_FromString(reinterpret_cast<Operation*>(self)->signature->name.c_str());
}

PyObject* represent(PyObject* self) {
  return PyUnicode_FromFormat("<operation mcr_dl.%s>", reinterpret_cast<Operation*>(self)->signature->name.c_str());
}

PyObject* reduce_operation(PyObject* self, PyObject*) { return name_of(self, nullptr); }  // pickled by its global name

// Like a builtin function, an operation does not become a method of a class that has it. With __get__, help() treats it
// as a function and shows its signature.
PyObject* get_operation(PyObject* self, PyObject*, PyObject*) { return Py_NewRef(self); }

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Operation, call), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(Operation, dict), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef getters[] = {
    {"__name__", name_of, nullptr, nullptr, nullptr},
    {"__qualname__", name_of, nullptr, nullptr, nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef methods[] = {
    {"__reduce__", reduce_operation, METH_NOARGS, nullptr},
    {"_check", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(check_operation)),
     METH_FASTCALL | METH_KEYWORDS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot type_slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_repr, reinterpret_cast<void*>(represent)},
    {Py_tp_getattro, reinterpret_cast<void*>(PyObject_GenericGetAttr)},
    {Py_tp_setattro, reinterpret_cast<void*>(PyObject_GenericSetAttr)},
    {Py_tp_descr_get, reinterpret_cast<void*>(get_operation)},
    {Py_tp_members, members},
    {Py_tp_getset, getters},
    {Py_tp_methods, methods},
    {0, nullptr},
};

PyType_Spec type_spec = {"mcr_dl._C.Operation", sizeof(Operation), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                         type_slots};

}  // namespace

void set_world(std::shared_ptr<Group> group) {
  default_world.group.swap(group);
  if (group != nullptr && default_world.calls != 0) default_world.former.push_back(std::move(group));
}

const std::shared_ptr<Group>& world() { return default_world.group; }

void set_coalescing(PyObject* list, const Group* group) {
  Py_XINCREF(list);
  Py_XDECREF(std::exchange(coalescing, list));
  coalescing_group = group;
}

void add_operations(PyObject* module) {
  auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&type_spec));
  if (type == nullptr || PyModule_AddObjectRef(module, "Operation", reinterpret_cast<PyObject*>(type)) != 0)
    throw ErrorAlreadySet{};
  for (const auto& signature : signatures()) {
    auto* operation = PyObject_New(Operation, type);
    if (operation == nullptr) throw ErrorAlreadySet{};
    operation->call = call_operation;
    operation->signature = &signature;
    operation->dict = PyDict_New();
    const Owner owner(reinterpret_cast<PyObject*>(operation));
    if (operation->dict == nullptr || PyModule_AddObjectRef(module, signature.name.c_str(), owner.get()) != 0)
      throw ErrorAlreadySet{};
  }
}

}  // namespace mcr::python
