// SPDX-License-Identifier: Apache-2.0
#include "tensors.h"

#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <optional>
#include <string>

#include "error.h"
#include "errors.h"

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
  if (!tensor.is_contiguous()) {
    wrong(ErrorCode::InvalidArgument, parameter, "a contiguous tensor (call .contiguous())",
          "shape " + text(tensor.sizes()) + " with strides " + text(tensor.strides()));
  }
  if (tensor.is_conj() || tensor.is_neg()) {
    wrong(ErrorCode::InvalidArgument, parameter, "a tensor with its values in memory",
          "a lazy conjugate or negative view (call .resolve_conj() or .resolve_neg())");
  }
}

// The Python error in flight as the core's, so that the call's name gets in front of its text.
[[noreturn]] void raise_as_error() {
  const auto code = PyErr_ExceptionMatches(PyExc_TypeError) != 0 ? ErrorCode::InvalidType : ErrorCode::InvalidArgument;
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* text = PyObject_Str(value);
  const std::string message = text == nullptr ? "cannot be used" : PyUnicode_AsUTF8(text);
  for (PyObject* object : {type, value, traceback, text}) Py_XDECREF(object);
  throw Error(code, message);
}

// Kept for ever.
PyObject* function_of_arrays(const char* name) {
  PyObject* module = PyImport_ImportModule("mcr_dl._arrays");
  if (module == nullptr) throw ErrorAlreadySet{};
  PyObject* function = PyObject_GetAttrString(module, name);
  Py_DECREF(module);
  if (function == nullptr) throw ErrorAlreadySet{};
  return function;
}

// NumPy and DLPack objects become tensors on the same memory through mcr_dl._arrays.
at::Tensor from_array(PyObject* object, const char* parameter) {
  static PyObject* convert = function_of_arrays("as_tensor");
  PyObject* tensor = PyObject_CallFunction(convert, "Os", object, parameter);
  if (tensor == nullptr) raise_as_error();
  at::Tensor result = THPVariable_Unpack(tensor);
  Py_DECREF(tensor);
  return result;
}

std::optional<uintptr_t> stream_of_array(PyObject* object) {
  static PyObject* ask = function_of_arrays("stream_of");
  PyObject* answer = PyObject_CallOneArg(ask, object);
  if (answer == nullptr) raise_as_error();
  std::optional<uintptr_t> stream;
  if (answer != Py_None) stream = static_cast<uintptr_t>(PyLong_AsUnsignedLongLong(answer));
  Py_DECREF(answer);
  return stream;
}

void check_length(int64_t count, const char* parameter, int expected) {
  if (count == expected) return;
  wrong(ErrorCode::InvalidArgument, parameter, std::to_string(expected) + " tensors (one per rank)",
        std::to_string(count));
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

at::Tensor view_of(const Buffer& buffer, DType dtype) {
  return at::from_blob(buffer.data, {buffer.count}, at::TensorOptions().dtype(scalar_of(dtype)));
}

bool Tensors::is(PyObject* object) { return THPVariable_Check(object) || PyObject_HasAttrString(object, "__dlpack__"); }

const at::Tensor& Tensors::get(PyObject* object, const char* parameter) {
  if (THPVariable_Check(object)) return get(THPVariable_Unpack(object), parameter);
  wrapped_.reserve(2);  // references into it are handed out
  return adopt(wrapped_.emplace_back(of_array(object, parameter)), parameter);
}

const at::Tensor& Tensors::get(const at::Tensor& tensor, const char* parameter) {
  direct_[direct_count_++] = &adopt(tensor, parameter);
  return tensor;
}

at::Tensor Tensors::of_array(PyObject* object, const char* parameter) {
  at::Tensor tensor = from_array(object, parameter);
  if (tensor.is_cuda() && !stream_) stream_ = stream_of_array(object);
  return tensor;
}

c10::Device Tensors::torch_device() const {
  return device_.type == DeviceType::CPU ? c10::Device(at::kCPU)
                                         : c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device_.index));
}

Tensors::List Tensors::list(PyObject* objects, const char* parameter, int expected) {
  PyObject* sequence = PySequence_Fast(objects, "");
  if (sequence == nullptr) {
    PyErr_Clear();
    wrong(ErrorCode::InvalidType, parameter, "a list of tensors", Py_TYPE(objects)->tp_name);
  }
  const std::unique_ptr<PyObject, decltype([](PyObject* o) { Py_DECREF(o); })> owner(sequence);
  const auto count = PySequence_Fast_GET_SIZE(sequence);
  check_length(count, parameter, expected);
  List result;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(sequence, i);
    const auto name = member(parameter, i);
    append(result, THPVariable_Check(item) ? THPVariable_Unpack(item) : of_array(item, name.c_str()), name);
  }
  return result;
}

Tensors::List Tensors::list(const std::vector<at::Tensor>& tensors, const char* parameter, int expected) {
  check_length(static_cast<int64_t>(tensors.size()), parameter, expected);
  List result;
  for (std::size_t i = 0; i < tensors.size(); ++i) append(result, tensors[i], member(parameter, i));
  return result;
}

void Tensors::append(List& list, const at::Tensor& tensor, const std::string& name) {
  const Buffer memory = buffer(adopt(tensor, name.c_str()));
  list.blocks.push_back({memory.data, memory.count});
  list.tensors.push_back(tensor);
  wrapped_.push_back(tensor);
}

const at::Tensor& Tensors::adopt(const at::Tensor& tensor, const char* parameter) {
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
  return tensor;
}

std::vector<at::Tensor> Tensors::all() const {
  std::vector<at::Tensor> result = wrapped_;
  for (std::size_t i = 0; i < direct_count_; ++i) result.push_back(*direct_[i]);
  return result;
}

}  // namespace mcr::python
