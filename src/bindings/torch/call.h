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

/// One call of torch's on its way to the dispatch. The tensors and lists that it is given stay where they are until it
/// has been started or run. Works with and without the GIL.
class TorchCall {
 public:
  using TensorList = std::vector<at::Tensor>;

  TorchCall(Group& group, Op op, std::chrono::milliseconds timeout);

  /// From now on this thread alone runs calls inside the libraries; those of other threads are started and polled. A
  /// library that lets one thread in at a time would else keep one thread waiting for a call that another, behind it,
  /// has to make first. Programs have equal threads on all ranks.
  static void block_in_this_thread() noexcept;

  /// Names are literals.
  TorchCall& in(const at::Tensor& tensor, const char* name = "input");
  TorchCall& out(const at::Tensor& tensor, const char* name = "output");
  /// One tensor per rank.
  TorchCall& in(const TensorList& list, const char* name);
  TorchCall& out(const TensorList& list, const char* name);
  TorchCall& reduction(const c10d::ReduceOp& op);
  /// The root or peer as a rank of the group.
  TorchCall& root(int64_t rank, const char* name = "root");
  TorchCall& any_source();
  TorchCall& tag(int tag);
  /// Rows of the first dimension per rank; empty: equal parts.
  TorchCall& splits(const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows);
  /// Elements per rank of the output.
  TorchCall& out_counts(std::vector<int64_t> counts);

  /// Both throw Error; nothing is sent then.
  void run();
  std::shared_ptr<Work> start();

  Group& group() { return group_; }
  /// How errors name the call.
  std::string what() const;
  bool is_root() const { return call_.root == group_.rank(); }

 private:
  Group::Slot* prepare();
  TensorList results() const;
  template <class Action>
  auto named(Action action);

  Group& group_;
  Group::Slot* slot_ = nullptr;  // the candidate that the program names
  Names names_;
  Call call_;
  Plan plan_;
  Tensors tensors_;
  const at::Tensor* in_ = nullptr;
  const at::Tensor* out_ = nullptr;
  const TensorList* results_ = nullptr;  // a list in place of out_
};

}  // namespace mcr::python
