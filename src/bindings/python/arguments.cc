// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/arguments.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "base/candidate_name.h"
#include "base/error.h"
#include "bindings/python/errors.h"
#include "bindings/python/objects.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

constexpr double kForever = std::chrono::duration<double>(kLongestTimeout).count();  // in seconds

[[noreturn]] void wrong(ErrorCode code, const std::string& parameter, const std::string& expected,
                        const std::string& got) {
  throw Error(code, parameter + ": expected " + expected + ", got " + got);
}

std::string type_of(PyObject* value) { return Py_TYPE(value)->tp_name; }

Owner attribute(PyObject* object, const char* name) {
  Owner value(PyObject_GetAttrString(object, name));
  if (value == nullptr) throw ErrorAlreadySet{};
  return value;
}

Owner attribute(const char* module, const char* name) {
  const Owner owner(PyImport_ImportModule(module));
  if (owner == nullptr) throw ErrorAlreadySet{};
  return attribute(owner.get(), name);
}

// torch's enumerators, which live as long as the process.
const std::array<PyObject*, kReductions.size()>& enumerators() {
  static const auto all = [] {
    std::array<PyObject*, kReductions.size()> result{};
    const Owner type = attribute("torch.distributed", "ReduceOp");
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i] = PyObject_GetAttrString(type.get(), std::string(kReductions[i]).c_str());
      if (result[i] == nullptr) throw ErrorAlreadySet{};
    }
    return result;
  }();
  return all;
}

const Coding& coding_of(std::string_view text) {
  const Unlocked guard;  // making a codec may need Python, on a thread that waits for this one
  return Codecs::instance().coding(text);
}

// Distinguishes the name of an uninitialized backend from a typo. Only the error's kind depends on it.
[[noreturn]] void no_such_backend(Group& group, const CandidateName& candidate, PyObject* value) {
  const std::string name = represented(value);
  std::string initialized;
  for (const auto& candidate : group.candidates()) initialized += (initialized.empty() ? "" : ", ") + candidate.name;
  const Owner text(str_of(candidate.backend));
  const Owner unknown(
      text == nullptr ? nullptr
                      : PyObject_CallOneArg(attribute("mcr_dl.libraries.registry", "unknown_in").get(), text.get()));
  if (unknown == nullptr) throw ErrorAlreadySet{};
  const auto stranger = utf8_of(unknown.get(), "");
  if (stranger.empty() && group.find(candidate.backend) == nullptr) {
    throw Error(
        ErrorCode::NotInitialized,
        "backend: " + name + " was not named when the group was made; expected one of " + initialized + ", auto");
  }
  const bool part = !stranger.empty() && !candidate.parts.empty();
  wrong(ErrorCode::InvalidArgument, "backend", "one of " + initialized + ", auto",
        "the unknown name " + (part ? "'" + stranger + "' in " : "") + name);
}

CandidateName parse_candidate(std::string_view name) {
  try {
    return CandidateName::parse(name);
  } catch (const Error& error) {
    throw Error(error.code(), std::string("backend: ") + error.what());
  }
}

Candidate* find_candidate(Group& group, const CandidateName& parsed, PyObject* value) {
  const auto name = parsed.name();
  if (name == "auto") return nullptr;
  if (auto* candidate = group.find(name)) return candidate;
  no_such_backend(group, parsed, value);
}

}  // namespace

std::string_view string(PyObject* value, const char* parameter, const char* expected) {
  Py_ssize_t length = 0;
  const char* text = PyUnicode_Check(value) != 0 ? PyUnicode_AsUTF8AndSize(value, &length) : nullptr;
  if (text == nullptr) {
    PyErr_Clear();
    wrong(ErrorCode::InvalidType, parameter, expected, represented(value));
  }
  return {text, static_cast<std::size_t>(length)};
}

bool truth(PyObject* value, const char* parameter) {
  const int result = PyObject_IsTrue(value);
  if (result < 0) {  // for example, an array of several elements
    PyErr_Clear();
    wrong(ErrorCode::InvalidType, parameter, "True or False", type_of(value));
  }
  return result == 1;
}

int64_t integer(PyObject* value, const char* parameter) {
  const Owner index(PyNumber_Index(value));
  const int64_t result = index == nullptr ? -1 : PyLong_AsLongLong(index.get());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    wrong(ErrorCode::InvalidType, parameter, "an integer of 64 bits", represented(value));
  }
  return result;
}

int64_t not_negative(PyObject* value, const char* parameter, const char* expected) {
  const int64_t number = integer(value, parameter);
  if (number < 0) wrong(ErrorCode::InvalidArgument, parameter, expected, std::to_string(number));
  return number;
}

std::vector<int64_t> integers(PyObject* value, const char* parameter) {
  const Owner entries = entries_of(value);
  if (entries == nullptr) wrong(ErrorCode::InvalidType, parameter, "a list of integers", represented(value));
  std::vector<int64_t> result;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries.get()); ++i) {
    result.push_back(integer(PyTuple_GET_ITEM(entries.get(), i), parameter));
  }
  return result;
}

std::optional<std::chrono::milliseconds> duration_of(PyObject* value) {
  const Owner seconds(PyObject_HasAttrString(value, "total_seconds") != 0
                          ? PyObject_CallMethod(value, "total_seconds", nullptr)
                          : Py_NewRef(value));
  const double number = seconds == nullptr ? -1 : PyFloat_AsDouble(seconds.get());
  if (PyErr_Occurred() != nullptr || !std::isfinite(number)) {
    PyErr_Clear();
    return std::nullopt;
  }
  const double limited = std::clamp(number, -1.0, kForever) * 1000;
  // Away from 0, which has a meaning of its own.
  return std::chrono::milliseconds(static_cast<int64_t>(limited < 0 ? std::floor(limited) : std::ceil(limited)));
}

std::chrono::milliseconds milliseconds(PyObject* value, const char* parameter) {
  const auto found = duration_of(value);
  if (!found || found->count() <= 0) {
    wrong(ErrorCode::InvalidArgument, parameter, "a positive datetime.timedelta (or seconds)", represented(value));
  }
  return *found;
}

RedOp reduction(PyObject* value) {
  const auto& known = enumerators();
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (known[i] == value) return static_cast<RedOp>(i);
  }
  for (std::size_t i = 0; i < known.size(); ++i) {
    const int equal = PyUnicode_Check(value) != 0 ? 0 : PyObject_RichCompareBool(value, known[i], Py_EQ);
    if (equal < 0) PyErr_Clear();
    if (equal == 1) return static_cast<RedOp>(i);
  }
  wrong(ErrorCode::InvalidType, "op", "a torch.distributed.ReduceOp", represented(value));
}

bool is_no_member(PyObject* value) {
  static PyObject* none = attribute(attribute("torch.distributed", "GroupMember").get(), "NON_GROUP_MEMBER").release();
  if (PyLong_CheckExact(value) == 0) return false;
  const int equal = PyObject_RichCompareBool(value, none, Py_EQ);
  if (equal < 0) throw ErrorAlreadySet{};
  return equal == 1;
}

int root_rank(const Group& group, Op op, Named global, Named local) {
  const auto given = [](const Named& named) { return named.value != nullptr && named.value != Py_None; };
  if (given(global) && given(local)) {
    wrong(ErrorCode::InvalidArgument, std::string(global.name) + " and " + local.name, "one of the two", "both");
  }
  const auto ranks = [&] { return "a rank of the group (0 to " + std::to_string(group.size() - 1) + ")"; };
  if (given(local)) {
    const int64_t rank = integer(local.value, local.name);
    if (rank < 0 || rank >= group.size()) wrong(ErrorCode::InvalidArgument, local.name, ranks(), std::to_string(rank));
    return static_cast<int>(rank);
  }
  if (!given(global)) {
    if (op == Op::recv) return kAnyRank;
    if (op != Op::gather && op != Op::scatter) {
      wrong(ErrorCode::InvalidArgument, global.name,
            local.name == nullptr ? ranks() : ranks() + " here or in " + local.name, "None");
    }
  }
  // The default root of gather and scatter in torch is global rank 0.
  const int64_t rank = given(global) ? integer(global.value, global.name) : 0;
  const int place = rank < 0 || rank > INT_MAX ? -1 : group.group_rank(static_cast<int>(rank));
  if (place < 0) {
    std::string members;
    for (std::size_t i = 0; i < group.spec().ranks.size() && i < 8; ++i)
      members += (i == 0 ? "" : ", ") + std::to_string(group.spec().ranks[i]);
    if (group.size() > 8) members += ", ...";
    wrong(ErrorCode::InvalidArgument, global.name, "a global rank of the group's members (" + members + ")",
          std::to_string(rank));
  }
  return place;
}

const Coding& coding(PyObject* value) {
  return coding_of(string(value, "codec", "a specification such as 'int8:block=64'"));
}

Candidate* candidate_argument(Group& group, PyObject* value) {
  const Coding* coding = nullptr;
  auto* candidate = candidate_argument(group, value, coding);
  if (coding == nullptr) return candidate;
  wrong(ErrorCode::InvalidArgument, "backend", "a candidate without a codec", represented(value));
}

Candidate* candidate_argument(Group& group, PyObject* value, const Coding*& coding) {
  const auto name = string(value, "backend", "the name of a backend");
  if (name == "auto") return nullptr;
  if (auto* candidate = group.find(name)) return candidate;
  const auto parsed = parse_candidate(name);
  auto* candidate = find_candidate(group, parsed, value);
  if (!parsed.codec.empty()) coding = &coding_of(parsed.codec);
  return candidate;
}

std::vector<int64_t> split_counts(PyObject* splits, const char* parameter, const at::Tensor& tensor, int size) {
  const bool given = splits != nullptr && PySequence_Size(splits) != 0;
  PyErr_Clear();
  return split_counts(given ? integers(splits, parameter) : std::vector<int64_t>(), parameter, tensor, size);
}

std::vector<int64_t> split_counts(std::vector<int64_t> splits, const char* parameter, const at::Tensor& tensor,
                                  int size) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  if (splits.empty()) {
    if (rows % size != 0)
      wrong(ErrorCode::InvalidArgument, parameter,
            "splits, as " + std::to_string(rows) + " rows do not divide among " + std::to_string(size) + " ranks",
            "None");
    return std::vector<int64_t>(static_cast<std::size_t>(size), rows / size * row);
  }
  for (const auto count : splits) {  // before they are added up and multiplied
    if (count < 0 || count > rows)
      wrong(ErrorCode::InvalidArgument, parameter, "0 to " + std::to_string(rows) + " (the rows of the tensor)",
            std::to_string(count));
  }
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  if (sum != rows)
    wrong(ErrorCode::InvalidArgument, parameter, "a sum of " + std::to_string(rows) + " (the rows of the tensor)",
          std::to_string(sum));
  for (auto& count : splits) count *= row;
  return splits;
}

// Before 2.13 torch named it after NCCL only; the name remains as an alias.
std::pair<at::Tensor, double> premul_factor(const c10d::ReduceOp& reduction) {
  const auto none = std::numeric_limits<double>::quiet_NaN();
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(reduction.supplement_.get());
  if (supplement == nullptr) return {at::Tensor(), none};
  const auto& factor = supplement->tensor_factor;
  if (factor.defined() && factor.numel() != 1)
    wrong(ErrorCode::InvalidArgument, "op", "PREMUL_SUM with a factor of one element",
          std::to_string(factor.numel()) + " elements");
  if (factor.defined()) return {factor, none};
  return {at::Tensor(), supplement->double_factor};
}

std::pair<at::Tensor, double> premul_factor(PyObject* reduction) {
  const py::handle handle(reduction);
  // (isinstance() is also true for the enumerators.)
  if (!py::type::handle_of(handle).is(py::type::of<c10d::ReduceOp>())) {
    return {at::Tensor(), std::numeric_limits<double>::quiet_NaN()};
  }
  return premul_factor(handle.cast<const c10d::ReduceOp&>());
}

}  // namespace mcr::python
