// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/SmallVector.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "bindings/torch/hook_runs.h"
#include "runtime/work.h"

namespace mcr::python {

/// torch's Work for one or several started operations of the core. From any thread, with or without the GIL.
class TorchWork final : public c10d::Work {
 public:
  using Parts = c10::SmallVector<std::shared_ptr<mcr::Work>, 1>;
  struct Context {
    int rank;
    c10d::OpType type;
    uint64_t sequence = 0;
    bool blocks_host = false;  // wait() returns when the operation is complete, even if it runs on a stream
    bool timed = false;
  };

  /// `hook_runs`: its hook is called when a part is complete, once for each; may be null.
  TorchWork(Parts parts, Context context, std::shared_ptr<HookRuns> hook_runs);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  /// Zero: wait as long as each operation's own timeout.
  bool wait(std::chrono::milliseconds timeout) override;
  void blockCurrentStream() { synchronize(); }  // no override: torch before 2.9 has none
  /// A single operation cannot be stopped: throws.
  void abort() override;
  /// Gets the result tensors, or the error. For operations on a device's streams the future has its value at once, and
  /// taking the value makes the current stream wait.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// Gets the number of the WorkResult.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  /// Milliseconds from the start until the host saw the end; throws unless timing was enabled before.
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return context_.sequence; }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> make_future();
  void wait_for_future();
  void run_hook_after(mcr::Work& part);
  void when_done(std::function<void()> action);
  void when_over(const std::function<void()>& action);
  bool on_streams() const;

  const Parts parts_;
  const Context context_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  struct Clock {
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    std::atomic<int64_t> nanoseconds{-1};
  };
  std::shared_ptr<Clock> clock_;
  const std::shared_ptr<HookRuns> hook_runs_;  // null without a hook
};

/// The work of an operation that was complete before the caller got this.
class CompleteWork final : public c10d::Work {
 public:
  CompleteWork(int rank, c10d::OpType type, uint64_t sequence, std::vector<at::Tensor> results);
  /// Null, as from torch's own backends, except where torch registers the works of all calls, which must not be null.
  static c10::intrusive_ptr<c10d::Work> of_blocking_call(int rank, c10d::OpType type, uint64_t sequence);

  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return results_; }
  uint64_t getSequencenumber() const override { return sequence_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;

 private:
  const uint64_t sequence_;
  const std::vector<at::Tensor> results_;
};

}  // namespace mcr::python
