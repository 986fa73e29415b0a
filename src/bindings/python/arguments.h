// SPDX-License-Identifier: Apache-2.0
// Converts Python arguments to the core's values. Every function throws Error naming the parameter, what was expected
// and what was given.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <chrono>
#include <optional>
#include <string_view>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "bindings/python/gil.h"
#include "codecs/codec.h"
#include "group/group.h"

namespace mcr::python {

struct Named {
  const char* name;  // null if the operation has no such parameter
  PyObject* value;   // null if it was not given
};

bool truth(PyObject* value, const char* parameter);
int64_t integer(PyObject* value, const char* parameter);
int64_t not_negative(PyObject* value, const char* parameter, const char* expected);
/// Valid as long as the object lives. `expected`: for the error, such as "the name of a backend".
std::string_view string(PyObject* value, const char* parameter, const char* expected);
std::vector<int64_t> integers(PyObject* value, const char* parameter);
/// A timedelta or seconds, rounded away from 0; none of another object, infinity or NaN.
std::optional<std::chrono::milliseconds> duration_of(PyObject* value);
/// A timedelta or seconds; throws for another object and for 0 or less.
std::chrono::milliseconds milliseconds(PyObject* value, const char* parameter);
/// torch's ReduceOp or RedOpType.
RedOp reduction(PyObject* value);
/// Whether it is torch's GroupMember.NON_GROUP_MEMBER: an int of that value, no other object.
bool is_no_member(PyObject* value);
/// The group rank of a root or peer that is given as a global rank or as a group rank.
int root_rank(const Group& group, Op op, Named global, Named local);
/// The group's candidate without a codec that an argument names; null for "auto".
Candidate* candidate_argument(Group& group, PyObject* value);
/// Also one with a codec ("mpi|bf16"), which is stored in `coding`.
Candidate* candidate_argument(Group& group, PyObject* value, const Coding*& coding);
/// The Coding of a codec's specification.
const Coding& coding(PyObject* value);
/// Elements per rank from rows per rank (null: equal parts) of a tensor.
std::vector<int64_t> split_counts(PyObject* splits, const char* parameter, const at::Tensor& tensor, int size);
/// Elements per rank from rows per rank; empty: equal parts.
std::vector<int64_t> split_counts(std::vector<int64_t> splits, const char* parameter, const at::Tensor& tensor,
                                  int size);
/// The factor of a PREMUL_SUM reduction: a tensor of one element, or a number (then the tensor is undefined).
std::pair<at::Tensor, double> premul_factor(const c10d::ReduceOp& reduction);
/// Nothing for a Python object that is not a ReduceOp.
std::pair<at::Tensor, double> premul_factor(PyObject* reduction);

}  // namespace mcr::python
