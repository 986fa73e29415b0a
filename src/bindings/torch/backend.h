// SPDX-License-Identifier: Apache-2.0
// A group as a backend of torch.distributed.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "bindings/torch/blocks.h"
#include "bindings/torch/call.h"
#include "bindings/torch/hook_runs.h"
#include "bindings/torch/work.h"
#include "group/group.h"

namespace mcr::python {

/// torch's backend "mcr": every method is a call on the group. A call with asyncOp=false has ended when its method
/// returns, and the method returns null, as torch's own backends do (CompleteWork::of_blocking_call). From any thread;
/// startCoalescing() and endCoalescing() apply to the calls of their thread alone. If the group's calls are uniform,
/// such a call is the library's own blocking call; in a group of any form it is started and polled, as other ranks may
/// make it asynchronously.
class TorchBackend final : public c10d::Backend {
 public:
  using TorchWorkPtr = c10::intrusive_ptr<c10d::Work>;
  using TensorList = std::vector<at::Tensor>;
  using TensorLists = std::vector<TensorList>;
  using milliseconds = std::chrono::milliseconds;

  struct Options final : c10d::Backend::Options {
    explicit Options(std::vector<std::string> names, std::optional<bool> uniform = std::nullopt)
        : c10d::Backend::Options("mcr"), backends(std::move(names)), uniform(uniform) {}
    std::vector<std::string> backends;  // the backends used, in order of preference; empty: those of the default group,
                                        // or of the parent group
    std::optional<bool> uniform;        // whether a call has one form on all ranks; not set: MCR_DL_UNIFORM decides
  };

  TorchBackend(std::shared_ptr<Group> group, c10::intrusive_ptr<Options> options);

  const std::shared_ptr<Group>& group() const { return group_; }

  const std::string getBackendName() const override { return "mcr"; }
  bool supportsCoalescing() const override { return true; }
  bool supportsSplitting() const { return true; }
  /// A copy: torch writes the timeout of a part into them.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() { return c10::make_intrusive<Options>(*options_); }
  void setTimeout(milliseconds timeout);

  TorchWorkPtr broadcast(TensorList& tensors, const c10d::BroadcastOptions& opts) override;
  TorchWorkPtr allreduce(TensorList& tensors, const c10d::AllreduceOptions& opts) override;
  /// Always runs to its end, regardless of asyncOp: the amount of data is known only when all ranks have reported
  /// theirs.
  TorchWorkPtr allreduce_sparse(TensorList& tensors, const c10d::AllreduceOptions& opts) override;
  TorchWorkPtr allreduce_coalesced(TensorList& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  TorchWorkPtr reduce(TensorList& tensors, const c10d::ReduceOptions& opts) override;
  TorchWorkPtr allgather(TensorLists& outputs, TensorList& inputs, const c10d::AllgatherOptions& opts) override;
  TorchWorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  TorchWorkPtr allgather_coalesced(TensorLists& outputs, TensorList& inputs,
                                   const c10d::AllgatherOptions& opts) override;
  TorchWorkPtr allgather_into_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                               const c10d::AllgatherOptions& opts) override;
  TorchWorkPtr gather(TensorLists& outputs, TensorList& inputs, const c10d::GatherOptions& opts) override;
  TorchWorkPtr scatter(TensorList& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override;
  TorchWorkPtr reduce_scatter(TensorList& outputs, TensorLists& inputs,
                              const c10d::ReduceScatterOptions& opts) override;
  TorchWorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                    const c10d::ReduceScatterOptions& opts) override;
  TorchWorkPtr reduce_scatter_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                               const c10d::ReduceScatterOptions& opts) override;
  TorchWorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                             std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  TorchWorkPtr alltoall(TensorList& outputs, TensorList& inputs, const c10d::AllToAllOptions& opts) override;
  TorchWorkPtr send(TensorList& tensors, int rank, int tag) override;
  TorchWorkPtr recv(TensorList& tensors, int rank, int tag) override;
  TorchWorkPtr recvAnysource(TensorList& tensors, int tag) override;
  TorchWorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  /// Ends a block that has no endCoalescing().
  void startCoalescing() override;
  /// The work of the block's calls; of a block that a call has ended with an error, of the calls before that one.
  TorchWorkPtr endCoalescing() override;

  void setSequenceNumberForGroup() override {}  // every rank counts from zero
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  /// Waits until the hook has run for all calls of this group, but not longer than the end of a group waits for its
  /// operations: torch calls this before that end. Warns if a hook has not run.
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override { timed_ = true; }
  c10d::ErrorType getError() override;
  /// Null on ranks that are in no part.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts);
  bool supportsShrinking() const;  // virtual since torch 2.9, like shrink()
  /// Makes the backend of the ranks that are not excluded, which call this. The flags change nothing: calls that need a
  /// lost rank fail by themselves.
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& excluded, int flags,
                                           const c10::intrusive_ptr<c10d::Backend::Options>& opts);
  /// Ends the group, and with the default group the runtime. A second call does nothing.
  void shutdown() override;
  /// Like shutdown(), but does not wait for running operations, which then fail if the library can abort them.
  void abort() override;

 private:
  class InBlock;
  template <class Action>
  auto numbered(c10d::OpType type, const TorchCall& call, const Action& action);
  TorchWorkPtr issue(TorchCall& call, c10d::OpType type, bool asynchronous);
  template <class Given, class Fill>
  TorchWorkPtr issue_all(std::size_t count, Op op, c10d::OpType type, const Given& opts, const Fill& fill);
  TorchWorkPtr sum_of_entries(TensorList& tensors, const c10d::AllreduceOptions& opts);
  void break_off() noexcept;
  std::function<void()> hook(c10d::OpType type, uint64_t sequence) const;
  TorchWorkPtr wrap(TorchWork::Parts parts, c10d::OpType type, uint64_t sequence);

  const std::shared_ptr<Group> group_;
  const c10::intrusive_ptr<Options> options_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> timed_{false};
  Blocks blocks_;
  PendingHookRuns hook_runs_;
  // The last part, and torch's store for it, which is one object for all types of devices.
  std::pair<c10::intrusive_ptr<c10d::Store>, c10::intrusive_ptr<TorchBackend>> split_;
};

void add_torch_backend(pybind11::module_& module);

}  // namespace mcr::python
