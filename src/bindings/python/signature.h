// SPDX-License-Identifier: Apache-2.0
// The Python signatures of the operations, read from the op table's text once, at import.
#pragma once

#include <Python.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/ops.h"
#include "runtime/plan.h"

namespace mcr::python {

/// What a parameter means. Its name says so; where one name has several meanings the op table adds `:kind`.
enum class Kind : uint8_t {
  Tensor,   // read and written in place
  Input,    // one tensor
  Output,   // one tensor
  Inputs,   // a list of tensors, or one
  Outputs,  // a list of tensors, or one
  Reduction,
  Group,
  AsyncOp,
  Root,       // root or peer as a global rank
  GroupRoot,  // the same as a rank of the group
  Tag,
  InSplits,  // rows of the first dimension
  OutSplits,
  InCounts,  // elements
  OutCounts,
  InDispls,
  OutDispls,
  Timeout,
  Backend,
  SizeHint,  // for tuning tables
  Codec,
  Ignored,  // accepted for torch's sake, without effect on the host
};

struct Param {
  PyObject* name;    // interned
  const char* text;  // the same, for messages
  Kind kind;
  std::string default_value;  // Python text; empty if the parameter is required
  bool keyword_only;
};

struct Signature {
  std::string name;
  Op op;
  std::string summary;
  bool starts;  // always asynchronous
  std::vector<Param> params;
  int positional = 0;  // how many of them may be given by position
  Names names{};       // of the function and its parameters
  // Indexes of the parameters that every call reads first; params.size() where there is none.
  std::size_t group = 0, backend = 0, async_op = 0, root = 0, group_root = 0;
  std::vector<uint8_t> required{};  // indexes of the parameters without a default
  struct Rest {
    uint8_t index;
    bool always;  // the parameter means something also where it is not given
  };
  std::vector<Rest> rest{};  // the parameters that are read after those above
};

/// The word that stands for a kind in the op table.
std::string_view word_of(Kind kind);

/// All public operations: the ops under their own names, then the other spellings.
const std::vector<Signature>& signatures();

inline constexpr int kMaxParams = 16;

/// Puts the arguments of a vectorcall in the order of the parameters, null where none was given. A leading str goes to
/// `backend`; with it, a last positional bool goes to `async_op`, as in the paper's Listing 1. The root may have the
/// name that it has in the op's own function, or the paper's. Throws ErrorAlreadySet.
void arrange(const Signature& signature, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, PyObject** slots);

}  // namespace mcr::python
