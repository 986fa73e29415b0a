// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/tensors.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <optional>
#include <string>

#include "base/error.h"
#include "bindings/python/devices.h"
#include "bindings/python/errors.h"
#include "bindings/python/objects.h"
#include "observe/position.h"
#include "runtime/registry.h"

namespace mcr::python {

namespace {

[[noreturn]] void wrong(ErrorCode code, const char* parameter, const std::string& expected, const std::string& got) {
  throw Error(code, std::string(parameter) + ": expected " + expected + ", got " + got);
}

std::string text(const at::IntArrayRef& sizes) {
  std::string result = "(";
  for (const auto size : sizes) result += (result.size() > 1 ? ", " : "") + std::to_string(size);
  return result + ")";
}

Device device_of(const at::Tensor& tensor, const char* parameter) {
  const auto device = tensor.device();
  if (device.is_cpu()) return {DeviceType::CPU, 0};
  if (device.is_cuda()) return {DeviceType::CUDA, device.index()};
  wrong(ErrorCode::InvalidArgument, parameter, "a tensor on cpu or cuda", "one on " + device.str());
}

void check_memory(const at::Tensor& tensor, const char* parameter) {
  if (tensor.layout() != at::kStrided) {
    wrong(ErrorCode::InvalidArgument, parameter, "a dense tensor",
          "layout " + std::string(tensor.is_sparse() ? "sparse_coo" : "that is not strided"));
  }
  if (!tensor.is_contiguous() && !tensor.is_non_overlapping_and_dense()) {
    wrong(ErrorCode::InvalidArgument, parameter, "a tensor without gaps or overlaps in memory (call .contiguous())",
          "shape " + text(tensor.sizes()) + " with strides " + text(tensor.strides()));
  }
  if (tensor.is_conj() || tensor.is_neg()) {
    wrong(ErrorCode::InvalidArgument, parameter, "a tensor with its values in memory",
          "a lazy conjugate or negative view (call .resolve_conj() or .resolve_neg())");
  }
  const auto bytes = static_cast<int64_t>(tensor.element_size()) * (tensor.storage_offset() + tensor.numel());
  if (tensor.numel() == 0 || !tensor.has_storage()) return;
  const auto held = static_cast<int64_t>(tensor.storage().unsafeGetStorageImpl()->nbytes());
  if (held < bytes) {
    wrong(ErrorCode::InvalidArgument, parameter, "a storage of at least " + std::to_string(bytes) + " bytes",
          std::to_string(held) + " bytes (storage().resize_() has freed the tensor's memory)");
  }
  if (tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() == nullptr) {
    wrong(ErrorCode::InvalidType, parameter, "a tensor with memory of its own",
          "one without, as inside torch.func.functionalize");
  }
}

// Turns the Python error in flight into an Error, so that the call's name can be added to its text. Ctrl-C is passed on
// unchanged.
[[noreturn]] void raise_as_error() {
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw ErrorAlreadySet{};
  const auto code = PyErr_ExceptionMatches(PyExc_TypeError) != 0 ? ErrorCode::InvalidType : ErrorCode::InvalidArgument;
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  const Owner owners[] = {Owner(type), Owner(value), Owner(traceback)};
  const Owner text(value == nullptr ? nullptr : PyObject_Str(value));
  throw Error(code, utf8_of(text.get(), "cannot be used"));
}

// Kept forever.
PyObject* function_of_arrays(const char* name) {
  const Owner module(PyImport_ImportModule("mcr_dl.base.arrays"));
  PyObject* function = module == nullptr ? nullptr : PyObject_GetAttrString(module.get(), name);
  if (function == nullptr) throw ErrorAlreadySet{};
  return function;
}

// Turns NumPy and DLPack objects into tensors on their memory, through mcr_dl.base.arrays.
at::Tensor from_array(PyObject* object, const char* parameter, Use use) {
  static PyObject* convert = function_of_arrays("as_tensor");
  const Owner tensor(PyObject_CallFunction(convert, "OsO", object, parameter, use == Use::Send ? Py_False : Py_True));
  if (tensor == nullptr) raise_as_error();
  return THPVariable_Unpack(tensor.get());
}

std::optional<uintptr_t> stream_of_array(PyObject* object) {
  static PyObject* ask = function_of_arrays("stream_of");
  const Owner answer(PyObject_CallOneArg(ask, object));
  if (answer == nullptr) raise_as_error();
  if (answer.get() == Py_None) return std::nullopt;
  const auto stream = PyLong_AsUnsignedLongLong(answer.get());
  if (PyErr_Occurred() != nullptr) raise_as_error();
  return static_cast<uintptr_t>(stream);
}

// torch's functional collectives return tensors that wait for their values when they are used, and a gradient that
// ByteScheduler still reduces is one, too. Other tensors that work by their own __torch_dispatch__, such as a DTensor,
// have no memory.
at::Tensor with_memory(PyObject* object, const char* parameter) {
  const Owner wait(PyObject_GetAttrString(object, "trigger_wait"));
  if (wait == nullptr) {
    PyErr_Clear();
    wrong(ErrorCode::InvalidType, parameter, "a tensor with memory of its own",
          std::string("a ") + Py_TYPE(object)->tp_name + " (call .to_local() on a DTensor)");
  }
  const Owner tensor(PyObject_CallNoArgs(wait.get()));
  if (tensor == nullptr) raise_as_error();
  return THPVariable_Unpack(tensor.get());
}

// Whether the values are in the tensor's memory now.
bool has_memory(PyObject* object) {
  if (!THPVariable_CheckExact(object) && PyObject_HasAttrString(object, "trigger_wait")) [[unlikely]]
    return false;
  const auto& tensor = THPVariable_Unpack(object);
  if (!tensor.unsafeGetTensorImpl()->is_python_dispatch()) [[likely]]
    return true;
  return tensor.has_storage() &&
         tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
}

void check_length(int64_t count, const char* parameter, int expected) {
  if (count == expected) return;
  wrong(ErrorCode::InvalidArgument, parameter, std::to_string(expected) + " tensors (one per rank)",
        std::to_string(count));
}

Buffer buffer_of(const at::Tensor& tensor) { return {tensor.unsafeGetTensorImpl()->mutable_data(), tensor.numel()}; }

// For a dense tensor: dimensions of one element are ignored.
std::string layout_of(const at::Tensor& tensor) {
  std::vector<int64_t> sizes, strides;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 1) continue;
    sizes.push_back(tensor.size(i));
    strides.push_back(tensor.stride(i));
  }
  return "shape " + text(sizes) + " with strides " + text(strides);
}

// Communication is not differentiated, and may change leaves and tensors of inference mode.
template <class Action>
auto without_autograd(Action action) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return action();
}

template <class Index>
std::string member(const char* list, Index index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

}  // namespace

std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
#define X(name, scalar, bytes, kind) \
  case at::ScalarType::scalar:       \
    return DType::scalar;
    MCR_DTYPES(X)
#undef X
    default:
      return std::nullopt;
  }
}

at::ScalarType scalar_of(DType dtype) {
  constexpr std::array kScalars = {
#define X(name, scalar, bytes, kind) at::ScalarType::scalar,
      MCR_DTYPES(X)
#undef X
  };
  return kScalars[static_cast<std::size_t>(dtype)];
}

at::Tensor view_of(const Buffer& buffer, DType dtype, Device device, std::shared_ptr<void> owner) {
  const auto place = torch_device(device);
  const auto options = at::TensorOptions().dtype(scalar_of(dtype)).device(place);
  return at::for_blob(buffer.data, {buffer.count})
      .deleter([owner = std::move(owner)](void*) {})
      .options(options)
      .target_device(place)
      .make_tensor();
}

bool Tensors::is(PyObject* object) { return THPVariable_Check(object) || PyObject_HasAttrString(object, "__dlpack__"); }

const at::Tensor& Tensors::get(PyObject* object, const char* parameter, Use use) {
  if (THPVariable_Check(object) && has_memory(object)) [[likely]]
    return get(THPVariable_Unpack(object), parameter);
  const auto& tensor = made_.emplace_back(made_of(object, parameter, use));
  check(tensor, parameter);
  return tensor;
}

const at::Tensor& Tensors::get(const at::Tensor& tensor, const char* parameter) {
  check(tensor, parameter);
  direct_[direct_count_++] = &tensor;
  return tensor;
}

at::Tensor Tensors::made_of(PyObject* object, const char* parameter, Use use) {
  if (THPVariable_Check(object)) {
    return has_memory(object) ? THPVariable_Unpack(object) : with_memory(object, parameter);
  }
  at::Tensor tensor = from_array(object, parameter, use);
  if (tensor.is_cuda() && !stream_) stream_ = stream_of_array(object);
  return tensor;
}

std::optional<StreamGuard> Tensors::stream_guard() const {
  if (!stream_) return std::nullopt;
  return std::optional<StreamGuard>(std::in_place, external_stream(device_, *stream_));
}

Tensors::List Tensors::list(PyObject* objects, const char* parameter, int expected, Use use) {
  const Owner entries = entries_of(objects);
  if (entries == nullptr) wrong(ErrorCode::InvalidType, parameter, "a list of tensors", Py_TYPE(objects)->tp_name);
  const auto count = PyTuple_GET_SIZE(entries.get());
  check_length(count, parameter, expected);
  List result;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PyTuple_GET_ITEM(entries.get(), i);
    const auto name = member(parameter, i);
    append(result, made_of(item, name.c_str(), use), name, use);
  }
  return result;
}

Tensors::List Tensors::list(const std::vector<at::Tensor>& tensors, const char* parameter, int expected, Use use) {
  check_length(static_cast<int64_t>(tensors.size()), parameter, expected);
  List result;
  for (std::size_t i = 0; i < tensors.size(); ++i) append(result, tensors[i], member(parameter, i), use);
  return result;
}

void Tensors::append(List& list, const at::Tensor& tensor, const std::string& name, Use use) {
  check(tensor, name.c_str());
  const Buffer buffer = memory(tensor, use);
  list.blocks.push_back({buffer.data, buffer.count});
  list.tensors.push_back(tensor);
  made_.push_back(tensor);
}

Buffer Tensors::memory(const at::Tensor& tensor, Use use) {
  if (tensor.is_contiguous()) [[likely]]
    return buffer_of(tensor);
  if (use == Use::InPlace) {
    if (Position::detail()) layout_ = &Registry::instance().keep_name(layout_of(tensor));
    return buffer_of(tensor);
  }
  const auto guard = stream_guard();
  // The copy starts with the present values: an operation need not write all of its output.
  const at::Tensor rows = without_autograd([&] { return tensor.contiguous(); });
  made_.push_back(rows);
  if (use == Use::Receive) received_.emplace_back(tensor, rows);
  return buffer_of(rows);
}

double Tensors::take_factor(std::pair<at::Tensor, double> factor) {
  factor_ = std::move(factor.first);
  return factor.second;
}

void Tensors::describe(Call& call, Extras& extras) {
  call.dtype = dtype_;
  call.device = device_;
  call.layout = layout_;
  if (factor_.defined() && factor_.is_cpu()) {
    call.factor = factor_.item<double>();
    factor_ = at::Tensor();
  }
  if (received_.empty()) [[likely]]
    return;
  extras.deliver = [copies = std::move(received_)]() mutable {
    without_autograd([&] {
      for (const auto& [tensor, rows] : copies) tensor.copy_(rows);
    });
    copies.clear();  // releases them, like KeptTensors::release()
  };
}

void Tensors::place_factor(Call& call) {
  if (!factor_.defined()) return;
  factor_ = factor_.to(torch_device(device_), scalar_of(call.dtype)).contiguous();
  call.factor_data = factor_.data_ptr();
}

void Tensors::check(const at::Tensor& tensor, const char* parameter) {
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype)
    wrong(ErrorCode::InvalidType, parameter, "a dtype that can be communicated", c10::toString(tensor.scalar_type()));
  const Device device = device_of(tensor, parameter);
  check_memory(tensor, parameter);
  if (first_) {
    first_ = false;
    dtype_ = *dtype;
    device_ = device;
  } else if (dtype_ != *dtype) {
    wrong(ErrorCode::InvalidType, parameter, "dtype " + std::string(row(dtype_).name) + " like the call's first tensor",
          std::string(row(*dtype).name));
  } else if (device_ != device) {
    wrong(ErrorCode::InvalidArgument, parameter, "a tensor on the device of the call's first tensor",
          tensor.device().str());
  }
}

void Tensors::append_all(TensorList& list, const at::Tensor* left_out) const {
  for (const auto& tensor : made_) {
    if (&tensor != left_out) list.push_back(tensor);
  }
  for (std::size_t i = 0; i < direct_count_; ++i) {
    if (direct_[i] != left_out) list.push_back(*direct_[i]);
  }
  if (factor_.defined()) list.push_back(factor_);
}

}  // namespace mcr::python
