// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "work.h"

namespace mcr::python {

/// What torch gets for one or several started operations of ours. From any thread, with or without the GIL.
class TorchWork final : public c10d::Work {
 public:
  struct Context {
    int rank;
    c10d::OpType type;
    uint64_t sequence = 0;
    bool blocks_host = false;  // wait() returns when the operation is complete, also where it runs on a stream
    bool timed = false;
  };

  TorchWork(std::vector<std::shared_ptr<mcr::Work>> parts, Context context);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  /// Zero: for as long as each operation's own time limit grants.
  bool wait(std::chrono::milliseconds timeout) override;
  void blockCurrentStream() { synchronize(); }  // no override: torch before 2.9 has none
  /// One operation cannot be stopped: throws.
  void abort() override;
  /// Gets the result tensors, or the error. That of operations on a device's streams has its value at once, and whoever
  /// takes it makes its stream wait.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// Gets the number of the WorkResult.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  /// Milliseconds from the start to the moment when the host saw the end; throws unless timing was enabled before.
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return context_.sequence; }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> make_future();
  void wait_for_future();
  void when_done(std::function<void()> action);

  const std::vector<std::shared_ptr<mcr::Work>> parts_;
  const Context context_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  struct Clock {
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    std::atomic<int64_t> nanoseconds{-1};
  };
  std::shared_ptr<Clock> clock_;
};

}  // namespace mcr::python
