// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/signature.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "bindings/python/errors.h"
#include "bindings/python/objects.h"

namespace mcr::python {

namespace {

constexpr std::pair<std::string_view, Kind> kKinds[] = {
    {"tensor", Kind::Tensor},
    {"input", Kind::Input},
    {"output", Kind::Output},
    {"inputs", Kind::Inputs},
    {"outputs", Kind::Outputs},
    {"op", Kind::Reduction},
    {"group", Kind::Group},
    {"async_op", Kind::AsyncOp},
    {"src", Kind::Root},
    {"dst", Kind::Root},
    {"root", Kind::Root},
    {"group_src", Kind::GroupRoot},
    {"group_dst", Kind::GroupRoot},
    {"tag", Kind::Tag},
    {"input_split_sizes", Kind::InSplits},
    {"output_split_sizes", Kind::OutSplits},
    {"scounts", Kind::InCounts},
    {"rcounts", Kind::OutCounts},
    {"in_counts", Kind::InCounts},
    {"sdispls", Kind::InDispls},
    {"rdispls", Kind::OutDispls},
    {"in_displs", Kind::InDispls},
    {"out_displs", Kind::OutDispls},
    {"timeout", Kind::Timeout},
    {"backend", Kind::Backend},
    {"size_hint", Kind::SizeHint},
    {"codec", Kind::Codec},
    {"priority", Kind::Priority},
    {"key", Kind::Key},
    {"device_ids", Kind::Ignored},
};

// The paper's names for parameters that have other names in torch.
constexpr std::pair<std::string_view, Kind> kAliases[] = {{"root", Kind::Root}, {"rank", Kind::Root}};

Kind kind_of(std::string_view word) {
  for (const auto& [name, kind] : kKinds) {
    if (name == word) return kind;
  }
  throw std::logic_error("op table: no kind for parameter " + std::string(word));
}

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

// "name[:kind][=default]"
Param parse_param(std::string_view text, bool keyword_only) {
  const auto equals = text.find('=');
  const auto declared = text.substr(0, equals);
  const auto colon = declared.find(':');
  const std::string name(declared.substr(0, colon));
  const auto kind = kind_of(colon == std::string_view::npos ? std::string_view(name) : declared.substr(colon + 1));
  const std::string value(equals == std::string_view::npos ? "" : text.substr(equals + 1));
  PyObject* interned = PyUnicode_InternFromString(name.c_str());
  const char* utf8 = interned == nullptr ? nullptr : PyUnicode_AsUTF8(interned);
  if (utf8 == nullptr) throw ErrorAlreadySet{};
  return {interned, utf8, kind, value, keyword_only};
}

std::size_t index_of(const Signature& signature, Kind kind) {
  for (std::size_t i = 0; i < signature.params.size(); ++i) {
    if (signature.params[i].kind == kind) return i;
  }
  return signature.params.size();
}

// Parameters that the function does not name keep their general names.
void fill(Names& names, const Signature& signature) {
  constexpr std::pair<Kind, const char* Names::*> kNamed[] = {
      {Kind::Input, &Names::in},
      {Kind::Inputs, &Names::in},
      {Kind::Tensor, &Names::out},
      {Kind::Output, &Names::out},
      {Kind::Outputs, &Names::out},
      {Kind::InCounts, &Names::in_counts},
      {Kind::InSplits, &Names::in_counts},
      {Kind::OutCounts, &Names::out_counts},
      {Kind::OutSplits, &Names::out_counts},
      {Kind::InDispls, &Names::in_displs},
      {Kind::OutDispls, &Names::out_displs},
      {Kind::Root, &Names::root},
  };
  names.function = signature.name.c_str();
  for (const auto& param : signature.params) {
    for (const auto& [kind, name] : kNamed) {
      if (param.kind == kind) names.*name = param.text;
    }
  }
}

Signature parse(std::string_view name, Op op, std::string_view text, std::string_view summary, bool starts) {
  Signature signature{std::string(name), op, std::string(summary), starts, {}};
  bool keyword_only = false;
  while (!text.empty()) {
    const auto comma = text.find(',');
    const auto part = trim(text.substr(0, comma));
    text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
    if (part == "*") {
      keyword_only = true;
      continue;
    }
    signature.params.push_back(parse_param(part, keyword_only));
    signature.positional += keyword_only ? 0 : 1;
  }
  signature.params.push_back(parse_param("backend=None", true));
  if (row(op).extent != Extent::None) {
    for (const auto* more : {"codec=None", "priority=0", "key=None"})
      signature.params.push_back(parse_param(more, true));
  }
  if (index_of(signature, Kind::Timeout) == signature.params.size())
    signature.params.push_back(parse_param("timeout=None", true));
  if (index_of(signature, Kind::AsyncOp) == signature.params.size() && !starts)
    signature.params.push_back(parse_param("async_op=False", true));
  signature.group = index_of(signature, Kind::Group);
  signature.backend = index_of(signature, Kind::Backend);
  signature.async_op = index_of(signature, Kind::AsyncOp);
  signature.root = index_of(signature, Kind::Root);
  signature.group_root = index_of(signature, Kind::GroupRoot);
  const std::array first = {signature.group, signature.backend, signature.async_op, signature.root,
                            signature.group_root};
  for (std::size_t i = 0; i < signature.params.size(); ++i) {
    const auto& param = signature.params[i];
    const auto index = static_cast<uint8_t>(i);
    if (param.default_value.empty()) signature.required.push_back(index);
    const bool read = param.kind == Kind::Ignored || std::find(first.begin(), first.end(), i) != first.end();
    // The root must have a list that other ranks must not have.
    const bool always = param.default_value.empty() || param.kind == Kind::Inputs || param.kind == Kind::Outputs;
    if (!read) signature.rest.push_back({index, always});
  }
  return signature;
}

[[noreturn]] void type_error(const Signature& signature, const std::string& text) {
  const Owner message(str_of(signature.name + "() " + text));
  if (message != nullptr) PyErr_SetObject(PyExc_TypeError, message.get());
  throw ErrorAlreadySet{};
}

bool equal(PyObject* keyword, const char* text) { return PyUnicode_CompareWithASCIIString(keyword, text) == 0; }

std::size_t index_of_keyword(const Signature& signature, PyObject* keyword) {
  const auto& params = signature.params;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].name == keyword) return i;
  }
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (equal(keyword, params[i].text)) return i;
  }
  for (const auto& [alias, kind] : kAliases) {
    if (equal(keyword, alias.data())) return index_of(signature, kind);
  }
  const auto& own = signatures()[static_cast<std::size_t>(signature.op)];
  const bool root = own.root < own.params.size() && equal(keyword, own.params[own.root].text);
  return root ? signature.root : params.size();
}

void put(const Signature& signature, PyObject** slots, std::size_t index, PyObject* value) {
  if (slots[index] != nullptr) {
    type_error(signature, std::string("got several values for argument '") + signature.params[index].text + "'");
  }
  slots[index] = value;
}

}  // namespace

std::string_view word_of(Kind kind) {
  for (const auto& [word, meaning] : kKinds) {
    if (meaning == kind) return word;
  }
  return "";
}

const std::vector<Signature>& signatures() {
  static const auto all = [] {
    std::vector<Signature> list;
    for (std::size_t i = 0; i < kOps.size(); ++i) {
      list.push_back(parse(kOps[i].name, static_cast<Op>(i), kOps[i].signature, kOps[i].summary, false));
    }
    for (const auto& s : kSpellings) list.push_back(parse(s.name, s.op, s.signature, s.summary, s.starts));
    for (auto& signature : list) fill(signature.names, signature);  // names point into it; it does not move
    return list;
  }();
  return all;
}

void arrange(const Signature& signature, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, PyObject** slots) {
  const auto& params = signature.params;
  PyObject* const* keyword_values = args + nargs;
  if (nargs > 0 && PyUnicode_Check(args[0])) {
    slots[signature.backend] = args[0];
    ++args;
    --nargs;
    if (nargs > 0 && PyBool_Check(args[nargs - 1]) && signature.async_op < params.size()) {
      slots[signature.async_op] = args[nargs - 1];
      --nargs;
    }
  }
  if (nargs > signature.positional) {
    type_error(signature,
               "takes " + std::to_string(signature.positional) + " positional arguments, got " + std::to_string(nargs));
  }
  for (Py_ssize_t i = 0; i < nargs; ++i) put(signature, slots, static_cast<std::size_t>(i), args[i]);
  const Py_ssize_t keywords = kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames);
  for (Py_ssize_t i = 0; i < keywords; ++i) {
    PyObject* keyword = PyTuple_GET_ITEM(kwnames, i);
    const auto index = index_of_keyword(signature, keyword);
    if (index == params.size())
      type_error(signature, "got an unexpected keyword argument '" + utf8_of(keyword, "?") + "'");
    put(signature, slots, index, keyword_values[i]);
  }
  for (const auto index : signature.required) {
    if (slots[index] == nullptr) {
      type_error(signature, std::string("is missing the argument '") + params[index].text + "'");
    }
  }
}

}  // namespace mcr::python
