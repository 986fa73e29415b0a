// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "bindings/python/tensors.h"
#include "engine/dispatch.h"

namespace mcr::python {

/// One torch call on its way to dispatch. The tensors and lists passed in must stay valid until the call has been
/// started or run. Works with and without the GIL.
class TorchCall {
 public:
  using TensorList = std::vector<at::Tensor>;

  TorchCall(Group& group, Op op, std::chrono::milliseconds timeout);

  /// From now on only this thread runs calls inside the libraries; calls of other threads are started and polled.
  /// Otherwise, in a library that admits one thread at a time, a thread could block in a call while the call that must
  /// come first waits in another thread. Programs have equal threads on all ranks.
  static void block_in_this_thread() noexcept;

  /// Names must be literals.
  TorchCall& in(const at::Tensor& tensor, const char* name = "input");
  TorchCall& out(const at::Tensor& tensor, const char* name = "output");
  /// One tensor per rank.
  TorchCall& in(const TensorList& list, const char* name);
  TorchCall& out(const TensorList& list, const char* name);
  TorchCall& reduction(const c10d::ReduceOp& op);
  /// The root or peer as a group rank.
  TorchCall& root(int64_t rank, const char* name = "root");
  TorchCall& any_source();
  TorchCall& tag(int tag);
  /// Rows of the first dimension per rank; empty: equal parts.
  TorchCall& splits(const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows);
  /// Elements per rank of the output.
  TorchCall& out_counts(std::vector<int64_t> counts);

  /// Both throw Error, before anything is sent.
  void run();
  std::shared_ptr<Work> start();
  /// Of a call that has failed: whether a backend may have got a part of it.
  bool sent() const { return extras_.sent; }

  Group& group() { return group_; }
  /// The call's name in errors.
  std::string what() const;
  bool is_root() const { return call_.root == group_.rank(); }

 private:
  Candidate* prepare();
  TensorList results() const;
  template <class Action>
  auto named(Action action);

  Group& group_;
  Candidate* candidate_ = nullptr;  // the candidate that the program names
  Names names_;
  Call call_;
  Extras extras_;
  Tensors tensors_;
  const at::Tensor* in_ = nullptr;
  const at::Tensor* out_ = nullptr;
  const TensorList* results_ = nullptr;  // a list instead of out_
};

}  // namespace mcr::python
