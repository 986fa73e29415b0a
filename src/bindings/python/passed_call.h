// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/python/tensors.h"
#include "engine/deferred.h"
#include "engine/pass.h"

namespace mcr::python {

/// The name of a pass in exceptions: "pass 'mine' in mpi.all_reduce (group 'default', rank 1 of 4)".
std::string where(const std::string& pass, const Passage& passage);

/// A call as a pass in Python sees it. Every method needs the GIL. Without hold(), it is unusable after handle()
/// returns.
class PassedCall {
 public:
  PassedCall(std::shared_ptr<Group> group, const std::string& pass, Passage& passage, const Next& next);
  PassedCall(const PassedCall&) = delete;
  PassedCall& operator=(const PassedCall&) = delete;
  /// If the call is still held it fails: nothing can release it any more.
  ~PassedCall();

  // The call's values, as the pass has got them, also after its action. Tensors are one-dimensional views of the call's
  // memory, None where this rank has none.
  std::string op() const;
  pybind11::object group() const;
  pybind11::object backend() const;
  pybind11::object dtype() const;
  pybind11::object reduction() const;
  pybind11::object root() const;
  int tag() const;
  bool asynchronous() const;
  bool vectored() const;
  pybind11::object input() const;
  pybind11::object output() const;
  pybind11::object input_counts() const;
  pybind11::object output_counts() const;
  int64_t bytes() const;

  // The actions of a pass on the call: one of these, once.
  pybind11::object proceed(const pybind11::object& input, const pybind11::object& output,
                           const pybind11::object& backend);
  pybind11::object done();
  pybind11::object hold();
  /// Adds a step of the pass that runs when the call has its result, before any thread sees the call complete.
  void after(pybind11::function step);

  /// For the chain, after handle() has returned. Throws if the pass did nothing with the call, or has caught an error
  /// of the rest of the chain.
  Outcome outcome(const pybind11::object& returned);
  /// Call when the Passage is gone.
  void close();

 private:
  enum class Fate { Open, Proceeded, Answered, Held };
  const Call& call() const;
  Error over() const;
  void expect_open() const;
  void expect_steps() const;
  void expect_own_memory(const char* action) const;
  void decide(Fate fate);
  void keep_values();
  template <class Action>
  auto remembered(Action action);
  at::Tensor replacement(Tensors& tensors, const Buffer& side, const char* name, const pybind11::object& value) const;
  void replace(Tensors& tensors, Buffer& side, const at::Tensor& tensor);
  void distribute_later();
  std::shared_ptr<void> memory() const;
  pybind11::object view(const Buffer& side) const;
  pybind11::object proceed_held();
  void issue_held(Deferred& deferred, std::optional<Candidate> candidate, std::shared_ptr<const Chain> chain,
                  std::shared_ptr<void> memory) const;

  std::shared_ptr<Group> group_;
  const std::string pass_;
  Passage* passage_;
  const Next& next_;           // valid until handle() returns
  std::size_t earlier_steps_;  // number of steps in `after` of the passes before this one
  Fate fate_ = Fate::Open;
  Outcome outcome_;
  pybind11::object failure_;  // an exception of the rest of the chain
  // From the pass's action on, which gives the extras away and lets the rest of the chain change the call; all with the
  // GIL:
  using Counts = std::array<std::vector<int64_t>, 4>;
  Call kept_;
  const std::string* named_ = nullptr;  // its candidate, as the caller named it
  std::shared_ptr<Counts> counts_;      // of kept_; null: it has none
  std::shared_ptr<void> memory_;        // of its tensors, until handle() has returned and the call has gone on
  // For a held call, which outlives handle(); set by hold() and taken by proceed():
  std::optional<Candidate> candidate_;  // a copy, as the group may remove it meanwhile
  std::shared_ptr<const Chain> chain_;  // the chain with which it entered
  std::size_t from_ = 0;
  std::shared_ptr<Deferred> deferred_;
};

}  // namespace mcr::python
