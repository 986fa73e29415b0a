// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <Python.h>

#include <optional>
#include <string>
#include <vector>

#include "call.h"
#include "plan.h"

namespace mcr::python {

/// Nothing for a type that cannot be communicated.
std::optional<DType> dtype_of(at::ScalarType type);
at::ScalarType scalar_of(DType dtype);
/// A tensor of one dimension on the same memory, which it does not own.
at::Tensor view_of(const Buffer& buffer, DType dtype);

/// The tensors of one call, checked one by one and against each other: dense, contiguous, real memory, one dtype, one
/// device. Arrays that are not tensors are wrapped without a copy. Errors name the parameter.
class Tensors {
 public:
  /// The tensor behind a Python object. The reference holds while this object lives and the caller keeps `object`.
  const at::Tensor& get(PyObject* object, const char* parameter);
  /// The same for a tensor that the caller keeps.
  const at::Tensor& get(const at::Tensor& tensor, const char* parameter);
  struct List {
    std::vector<Block> blocks;
    std::vector<at::Tensor> tensors;
  };
  /// The tensors of a list or tuple of `expected` entries.
  List list(PyObject* objects, const char* parameter, int expected);
  List list(const std::vector<at::Tensor>& tensors, const char* parameter, int expected);

  static Buffer buffer(const at::Tensor& tensor) {
    return {tensor.unsafeGetTensorImpl()->mutable_data(), tensor.numel()};
  }
  static bool is(PyObject* object);

  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  c10::Device torch_device() const;
  /// The stream (a cudaStream_t) that the arrays' own library works on, if they are such arrays.
  std::optional<uintptr_t> stream() const { return stream_; }
  /// Everything that get() and list() returned, to be kept while an operation runs.
  std::vector<at::Tensor> all() const;

 private:
  at::Tensor of_array(PyObject* object, const char* parameter);
  const at::Tensor& adopt(const at::Tensor& tensor, const char* parameter);
  void append(List& list, const at::Tensor& tensor, const std::string& name);

  bool first_ = true;
  DType dtype_ = DType::Byte;
  Device device_;
  std::optional<uintptr_t> stream_;
  std::vector<at::Tensor> wrapped_;   // made here: lists' members and arrays
  const at::Tensor* direct_[2] = {};  // the caller's own objects
  std::size_t direct_count_ = 0;
};

}  // namespace mcr::python
