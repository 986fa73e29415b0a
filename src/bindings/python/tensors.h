// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/util/SmallVector.h>

#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/call.h"
#include "runtime/extras.h"

namespace mcr::python {

/// Empty for a type that cannot be communicated.
std::optional<DType> dtype_of(at::ScalarType type);
at::ScalarType scalar_of(DType dtype);
/// A one-dimensional tensor on the buffer's memory. It keeps `owner`, which must keep the memory.
at::Tensor view_of(const Buffer& buffer, DType dtype, Device device, std::shared_ptr<void> owner);

/// Tensors to be kept; most calls have one or two.
using TensorList = c10::SmallVector<at::Tensor, 2>;

/// How an operation uses a tensor.
enum class Use : uint8_t {
  InPlace,  // works on the memory in place, row by row or in another dense order (channels_last)
  Send,     // reads the elements row by row: gets a copy of a tensor in another order
  Receive,  // writes the elements row by row: a tensor in another order gets a copy, which describe() has copied back
};

/// The tensors of one call, checked individually and against each other: dense, real memory, one dtype, one device.
/// Arrays that are not tensors are wrapped without a copy. Errors name the parameter.
class Tensors {
 public:
  /// The tensor behind a Python object. The reference is valid while this object lives and the caller keeps `object`.
  const at::Tensor& get(PyObject* object, const char* parameter, Use use);
  /// Like get() above, for a tensor that the caller keeps.
  const at::Tensor& get(const at::Tensor& tensor, const char* parameter);
  struct List {
    std::vector<Block> blocks;
    std::vector<at::Tensor> tensors;
  };
  /// The tensors of a list or tuple with `expected` entries.
  List list(PyObject* objects, const char* parameter, int expected, Use use);
  List list(const std::vector<at::Tensor>& tensors, const char* parameter, int expected, Use use);

  /// The memory that the operation gets for a tensor from get(). With or without the GIL.
  Buffer memory(const at::Tensor& tensor, Use use);
  /// Takes the factor of a PREMUL_SUM; returns it if it is a number, else NaN.
  double take_factor(std::pair<at::Tensor, double> factor);
  /// Call after the last get() and list(): sets the call's element type, device and layout, and a factor in host memory
  /// as a number; adds to the extras the last steps of the copies of Use::Receive.
  void describe(Call& call, Extras& extras);
  /// Sets the call's factor in device memory, on the current stream. After describe().
  void place_factor(Call& call);

  static bool is(PyObject* object);

  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  /// The stream (a cudaStream_t) that the arrays' own library uses, if the arrays belong to such a library.
  std::optional<uintptr_t> stream() const { return stream_; }
  /// Makes that stream current for the guard's lifetime.
  std::optional<StreamGuard> stream_guard() const;
  /// Appends everything that get() and list() returned, except the tensor at `left_out`, and a factor in device memory,
  /// which the operation needs while it runs.
  void append_all(TensorList& list, const at::Tensor* left_out) const;

 private:
  using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;  // the caller's tensor, the operation's tensor

  at::Tensor made_of(PyObject* object, const char* parameter, Use use);
  void check(const at::Tensor& tensor, const char* parameter);
  void append(List& list, const at::Tensor& tensor, const std::string& name, Use use);

  bool first_ = true;
  DType dtype_ = DType::Byte;
  Device device_;
  std::optional<uintptr_t> stream_;
  const std::string* layout_ = nullptr;  // in detail mode: the layout of a tensor of Use::InPlace, if not row by row
  std::list<at::Tensor> made_;           // members of lists, and arrays; get() returns references to them
  const at::Tensor* direct_[2] = {};     // the caller's own objects
  std::size_t direct_count_ = 0;
  Copies received_;
  at::Tensor factor_;  // for PREMUL_SUM
};

}  // namespace mcr::python
