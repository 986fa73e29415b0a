// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/candidate_name.h"
#include "bindings/python/names.h"
#include "bindings/python/objects.h"
#include "bindings/python/parts.h"
#include "group/group.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

using Points = std::vector<std::pair<int64_t, int32_t>>;
using Costs = std::vector<std::tuple<std::string, bool, std::string, std::string, std::string, Points>>;
using TriedRows = std::vector<std::tuple<std::string, bool, std::string, std::string, int64_t, int64_t>>;
using ExcludedRows = std::vector<std::tuple<std::string, bool, std::string, std::string>>;
using Rules = std::vector<std::tuple<std::string, int64_t, int64_t, std::string>>;

// The names of operations in tables: an op's name, with a "v" for the form with counts per rank. A receive is part of
// its send.
const auto& operations() {
  static const auto known = [] {
    std::vector<std::pair<std::string, std::pair<Op, bool>>> result;
    for (std::size_t i = 0; i < kOps.size(); ++i) {
      const auto op = static_cast<Op>(i);
      if (op == Op::recv) continue;
      result.push_back({operation_name(op, false), {op, false}});
      if (kOps[i].is(kVectored)) result.push_back({operation_name(op, true), {op, true}});
    }
    return result;
  }();
  return known;
}

std::pair<Op, bool> operation_of(const std::string& name) {
  for (const auto& [known, operation] : operations()) {
    if (known == name) return operation;
  }
  throw py::value_error("unknown operation " + name);
}

CostCurve curve_of(const Points& points) {
  std::vector<CostCurve::Point> made;
  for (const auto& [bytes, cost] : points) made.push_back({bytes, cost});
  return CostCurve(std::move(made));
}

void tune(Group& group, const Costs& costs, bool exact, const Rules& rules, const TriedRows& tried,
          const ExcludedRows& excluded) {
  Tuning tuning;
  tuning.exact = exact;
  for (const auto& [operation, asynchronous, device, types, candidate, points] : costs) {
    const auto [op, vectored] = operation_of(operation);
    const Tuning::Subject subject{op, vectored, asynchronous, device_type(device),
                                  named<DTypeClass>(kDTypeClasses, types)};
    tuning.costs.push_back({subject, candidate, curve_of(points)});
  }
  for (const auto& [operation, from, to, candidate] : rules) {
    const auto [op, vectored] = operation_of(operation);
    tuning.rules.push_back({op, vectored, from, to < 0 ? Tuning::Rule::kNoEnd : to, candidate});
  }
  for (const auto& [operation, asynchronous, dtype, candidate, bytes, cost] : tried) {
    Tuning::Tried one{.call = {}, .candidate = candidate, .cost = cost};
    std::tie(one.call.op, one.call.vectored) = operation_of(operation);
    one.call.asynchronous = asynchronous;
    one.call.dtype = named<DType>(kDTypes, dtype);
    one.call.size_hint = bytes;
    tuning.tried.push_back(std::move(one));
  }
  for (const auto& [operation, asynchronous, device, candidate] : excluded) {
    const auto [op, vectored] = operation_of(operation);
    tuning.excluded.push_back({op, vectored, asynchronous, device_type(device), candidate});
  }
  group.tune(std::move(tuning));
}

// `nbytes` < 0: the size, which not all ranks know.
py::dict explain(Group& group, const std::string& operation, int64_t nbytes, const std::string& dtype,
                 const std::string& red, const std::string& device, bool asynchronous) {
  Call call;
  std::tie(call.op, call.vectored) = operation_of(operation);
  if (nbytes < 0 && message_elements(call, group.size()) >= 0) {
    throw Error(ErrorCode::InvalidArgument,
                "nbytes: expected the bytes of " + operation + ", which every rank knows, got None");
  }
  call.dtype = named<DType>(kDTypes, dtype);
  call.red = named<RedOp>(kReductions, red);
  call.device.type = device_type(device);
  call.asynchronous = asynchronous;
  call.size_hint = nbytes;
  const Group::Inside inside(group);
  const auto explanation = group.selector().explain(call, group.chain() == nullptr);
  py::dict candidates;
  bool measured = false;
  bool refined = false;
  for (const auto& candidate : explanation.candidates) {
    measured = measured || candidate.cost.has_value();
    refined = refined || candidate.refined;
    candidates[py::str(candidate.candidate->name)] =
        candidate.cost && nbytes >= 0 ? py::object(py::int_(*candidate.cost)) : py::none();
  }
  py::dict result;
  result["chosen"] = explanation.chosen->name;
  result["rule"] = explanation.rule;
  result["measured"] = measured;
  result["guessed"] = explanation.guessed;
  result["refined"] = refined;
  result["tried"] = explanation.tried;
  result["trying"] = explanation.trying;
  result["candidates"] = candidates;
  py::list excluded;
  for (const auto* candidate : explanation.excluded) excluded.append(candidate->name);
  result["excluded"] = excluded;
  py::dict shares;  // computed ones
  for (const auto& candidate : group.candidates()) {
    if (candidate.variant != 0) continue;
    if (const auto share = group.selector().share(candidate, call)) shares[py::str(candidate.name)] = *share;
  }
  result["shares"] = shares;
  return result;
}

// Returns period (0: off), fingerprint of the calls counted, costs.
std::tuple<int64_t, int64_t, std::vector<int64_t>> refinement(Group& group) {
  const auto* found = group.selector().refinement();
  if (found == nullptr) return {};
  return {found->period(), found->fingerprint(), found->costs()};
}

std::vector<std::tuple<std::string, int64_t, std::string, std::string>> adopt(Group& group,
                                                                              const std::vector<int64_t>& costs) {
  const auto* found = group.selector().refinement();
  if (found == nullptr || found->buckets().size() * group.candidates().size() != costs.size()) {
    throw Error(ErrorCode::InvalidArgument,
                "costs: expected one for each bucket and candidate, got " + std::to_string(costs.size()));
  }
  std::vector<std::tuple<std::string, int64_t, std::string, std::string>> result;
  for (const auto& change : group.selector().adopt(costs)) {
    result.emplace_back(operation_name(change.op, change.vectored), change.bytes, change.from, change.to);
  }
  return result;
}

std::vector<std::pair<int64_t, std::size_t>> ranges(const std::vector<Points>& given) {
  std::vector<CostCurve> curves;
  for (const auto& points : given) curves.push_back(curve_of(points));
  std::vector<const CostCurve*> compared;
  for (const auto& curve : curves) compared.push_back(&curve);
  std::vector<std::pair<int64_t, std::size_t>> result;
  for (const auto& range : cheapest(compared)) result.emplace_back(range.from, range.curve);
  return result;
}

}  // namespace

void add_tuning(py::module_& module, GroupClass& group) {
  group
      .def(
          "_cost_model",
          [](Group& self, const std::string& device) { return self.selector().cost_model(device_type(device)); },
          py::arg("device") = "cpu")
      .def("_tune", tune, py::arg("costs"), py::arg("exact"), py::arg("rules"), py::arg("tried"), py::arg("excluded"))
      .def("_explain", explain, py::arg("operation"), py::arg("nbytes"), py::arg("dtype"), py::arg("red"),
           py::arg("device"), py::arg("async_op") = false)
      .def(
          "_refine", [](Group& self, int64_t period) { self.selector().refine(period); }, py::arg("period"))
      .def("_refinement", refinement)
      .def("_adopt", adopt, py::arg("costs"));
  module.def(
      "operations",
      [] {
        std::vector<std::string> names;
        for (const auto& [name, operation] : operations()) names.push_back(name);
        return names;
      },
      "Names of the operations as tuning tables and benchmarks have them: the ops, and their vectored forms with a v.");
  py::class_<CandidateName>(module, "CandidateName", "The parts of a candidate's name, in any spelling.")
      .def(py::init([](const py::str& text) { return CandidateName::parse(utf8_of(text.ptr(), "")); }), py::arg("text"))
      .def_property_readonly("name", &CandidateName::name, "The one spelling, without the codec: stripe(gloo,mpi,67).")
      .def_readonly("backend", &CandidateName::backend, "Without the variant too: mpi, stripe(gloo,mpi).")
      .def_readonly("parts", &CandidateName::parts, "The backends that an algorithm over several is made of.")
      .def_property_readonly("algorithm", &CandidateName::algorithm, "stripe, hier, themis; empty without parts.")
      .def_property_readonly("hierarchical", &CandidateName::hierarchical,
                             "Whether the parts serve the dimensions of a topology.")
      .def_readonly("variant", &CandidateName::variant, "p2p, 67; empty for the backend's own choice.")
      .def_readonly("codec", &CandidateName::codec, "bf16; empty for none.")
      .def("__str__", &CandidateName::text);
  module.def(
      "split_names",
      [](const py::str& names) {
        const auto text = utf8_of(names.ptr(), "");
        const auto pieces = split_outside_parentheses(text, ',');
        return std::vector<std::string>(pieces.begin(), pieces.end());
      },
      py::arg("names"), "The names in a list separated by commas; commas inside parentheses belong to a name.");
  module.def(
      "canonical", [](const py::str& name) { return canonical(utf8_of(name.ptr(), "")); }, py::arg("name"),
      "The one spelling of a candidate's name; what is no such name stays as it is.");
  module.def(
      "dtype_class",
      [](const std::string& dtype) {
        return std::string(kDTypeClasses[static_cast<std::size_t>(class_of(named<DType>(kDTypes, dtype)))]);
      },
      "The class of an element type in cost tables: half, float, integer or complex.");
  module.def(
      "cost_at", [](const Points& points, int64_t nbytes) { return curve_of(points).at(nbytes); }, py::arg("curve"),
      py::arg("nbytes"), "The cost that a curve, as cheapest() takes it, has at a message size.");
  module.def("cheapest", ranges, py::arg("curves"),
             "The ranges of message sizes as (from, place of the cheapest curve); a curve is a list of (bytes, log2 of "
             "nanoseconds in 1/65536).");
}

}  // namespace mcr::python
