// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>

#include "engine/deferred.h"
#include "engine/pass.h"

namespace mcr::python {

/// Gives up a reference, on whatever thread; after the interpreter's end it is left alone.
void let_go(pybind11::object& object);

/// How the exceptions of a pass name it: "pass 'mine' in mpi.all_reduce (group 'default', rank 1 of 4)".
std::string where(const std::string& pass, const Passage& passage);

/// A call as a pass in Python sees it. Every method needs the GIL. Without hold() it is over when handle() returns.
class PassedCall {
 public:
  PassedCall(std::shared_ptr<Group> group, const std::string& pass, Passage& passage, const Next& next);
  PassedCall(const PassedCall&) = delete;
  PassedCall& operator=(const PassedCall&) = delete;
  /// A call that is still held fails: nothing can let it go any more.
  ~PassedCall();

  // What the call is. Tensors are views of one dimension on the call's memory, None where this rank has none.
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

  // What a pass does with it: one of these, once.
  pybind11::object proceed(const pybind11::object& input, const pybind11::object& output,
                           const pybind11::object& backend);
  pybind11::object done();
  pybind11::object hold();
  /// A step of the pass that runs when the call has its result, before anybody sees the call complete.
  void after(pybind11::function step);

  /// For the chain, when handle() has returned. Throws if the pass has done nothing with the call.
  Outcome outcome(const pybind11::object& returned);
  /// The Passage is gone.
  void close() { passage_ = nullptr; }

 private:
  enum class Fate { Open, Proceeded, Answered, Held };
  const Call& call() const;
  void decide(Fate fate);
  void replace(Buffer& side, const char* name, const pybind11::object& value);
  void distribute_later();
  void choose_backend(Passage& passage, const pybind11::object& name) const;
  pybind11::object proceed_now(Passage& passage);
  pybind11::object proceed_held();

  std::shared_ptr<Group> group_;
  const std::string pass_;
  Passage* passage_;
  Next next_;
  std::size_t earlier_steps_;  // of `after`, which are those of the passes before this one
  Fate fate_ = Fate::Open;
  Outcome outcome_;
  // Of a held call, which outlives handle():
  Call held_;
  std::optional<Slot> slot_;  // the candidate it has; a copy, as the group may give it up meanwhile
  std::shared_ptr<const Chain> chain_;
  std::shared_ptr<Deferred> deferred_;
};

}  // namespace mcr::python
