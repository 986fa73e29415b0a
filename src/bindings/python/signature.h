// SPDX-License-Identifier: Apache-2.0
// The Python signatures of the operations, parsed from the op table's text once, at import.
#pragma once

#include <Python.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/ops.h"
#include "runtime/extras.h"

namespace mcr::python {

/// The kind of a parameter. Its name determines it; if a name has several kinds, the op table adds `:kind`.
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
  GroupRoot,  // root or peer as a group rank
  Tag,
  InSplits,  // rows of the first dimension
  OutSplits,
  InCounts,  // elements
  OutCounts,
  InDispls,
  OutDispls,
  Timeout,
  Backend,
  SizeHint,  // selects the entry in tuning tables
  Priority,
  Key,
  Codec,
  Ignored,  // accepted for compatibility with torch, ignored on the host
};

struct Param {
  PyObject* name;    // interned
  const char* text;  // the name as text, for errors
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
  int positional = 0;  // how many parameters may be given by position
  Names names{};       // of the function and its parameters
  // Indexes of the parameters that every call reads first; params.size() if the function lacks the parameter.
  std::size_t group = 0, backend = 0, async_op = 0, root = 0, group_root = 0;
  std::vector<uint8_t> required{};  // indexes of the parameters without a default
  struct Rest {
    uint8_t index;
    bool always;  // the parameter is read even if it is not given
  };
  std::vector<Rest> rest{};  // parameters that are read after those above
};

/// The word for a kind in the op table.
std::string_view word_of(Kind kind);

/// All public operations: first the ops under their own names, then the other spellings.
const std::vector<Signature>& signatures();

inline constexpr int kMaxParams = 16;

/// Puts the arguments of a vectorcall in the order of the parameters, null where none was given. A leading str is
/// `backend`; with it, a last positional bool is `async_op`, as in the paper's Listing 1. The root may have its name in
/// the op's own function, or in the paper. Throws ErrorAlreadySet.
void arrange(const Signature& signature, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, PyObject** slots);

}  // namespace mcr::python
