// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/log.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/gil.h"
#include "bindings/python/names.h"
#include "bindings/python/none.h"
#include "bindings/python/objects.h"
#include "observe/recorder.h"
#include "passes/log.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

py::object time_or_none(int64_t time) { return or_none(time != 0, time); }

// In the field order of mcr_dl.records.log.Record; `groups` maps to indexes in log_groups().
py::tuple tuple_of(const Reading& reading, const std::map<const RecordedGroup*, int>& groups) {
  const auto& record = reading.record;
  const auto& op = row(record.op);
  const bool pointed = op.is(kRooted) || op.is(kPeer);
  return py::make_tuple(record.number, record.seq, groups.at(record.group), op.name, record.vectored != 0, op.is(kPeer),
                        row(record.dtype).name, or_none(op.is(kReduces), name(record.red)),
                        or_none(pointed, record.root), or_none(op.is(kPeer), record.tag), text_or_none(record.backend),
                        record.asynchronous != 0, record.in_count, record.out_count,
                        py::tuple(py::cast(reading.in_splits)), py::tuple(py::cast(reading.out_splits)),
                        record.truncated != 0, record.bytes, or_none(record.sent_bytes >= 0, record.sent_bytes),
                        record.fused != 0, text_or_none(record.codec), record.issue, time_or_none(record.start),
                        time_or_none(record.end), time_or_none(record.wait_begin), time_or_none(record.wait_end),
                        record.waited, kCallStates[static_cast<std::size_t>(record.state)], record.thread,
                        text_or_none(record.caller), record.priority, text_or_none(record.key));
}

// The records whose numbers are in [first, end) of one of the spans.
py::list records(const std::vector<std::pair<int64_t, int64_t>>& spans) {
  auto& recorder = Recorder::instance();
  std::vector<Reading> readings;
  {
    const Unlocked guard;
    for (const auto& [first, end] : spans) std::ranges::move(recorder.read(first, end), std::back_inserter(readings));
  }
  std::map<const RecordedGroup*, int> places;  // read after the records, so that it has all of their groups
  for (const auto* group : recorder.groups()) places.emplace(group, static_cast<int>(places.size()));
  py::list result;
  for (const auto& reading : readings) result.append(tuple_of(reading, places));
  return result;
}

py::list groups() {
  py::list result;
  for (const auto* group : Recorder::instance().groups()) {
    result.append(py::make_tuple(group->name, group->instance, group->rank, group->ranks));
  }
  return result;
}

// The index of a group in log_groups(); None if it was never recorded. An earlier group may have had its name.
std::optional<std::ptrdiff_t> group_index(const Group& group) {
  const auto groups = Recorder::instance().groups();
  const auto found = std::ranges::find(groups, group.position().number(), &RecordedGroup::position);
  return found == groups.end() ? std::nullopt : std::optional(found - groups.begin());
}

// The names may be any public spelling of the ops.
std::shared_ptr<Log> make_log(const Group& group, const std::optional<std::vector<std::string>>& names) {
  Log::Ops ops;
  if (!names) ops.set();
  for (const auto& name : names.value_or(std::vector<std::string>{})) {
    ops.set(static_cast<std::size_t>(named<Op>(kOps, name)));
  }
  return std::make_shared<Log>(group, ops);
}

using Frame = std::unique_ptr<PyFrameObject, decltype([](PyFrameObject* frame) { Py_XDECREF(frame); })>;

std::string text_of(const py::handle& object, const char* attribute) {
  return utf8_of(py::object(object.attr(attribute)).ptr(), "?");
}

// The folder that the package was imported from, with a slash at the end.
std::string folder_of(const char* package) {
  const auto file = text_of(py::module_::import(package), "__file__");
  return file.substr(0, file.rfind('/') + 1);
}

// Whether a function of this file is torch's or this package's own, and not the program's.
bool is_library(const std::string& file) {
  static const auto torch = folder_of("torch.distributed"), own = folder_of("mcr_dl");
  if (file.starts_with(torch)) return true;
  return file.starts_with(own) && !file.starts_with(own + "examples/") && !file.starts_with(own + "testing/");
}

struct Place {
  std::string file, function;
  int line = 0;
};

// The innermost function of the program; if there is none, the outermost of all.
Place place_of(PyFrameObject* innermost) {
  Place place;
  Py_INCREF(innermost);
  for (Frame frame(innermost); frame != nullptr; frame.reset(PyFrame_GetBack(frame.get()))) {
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame.get())));
    place = {text_of(code, "co_filename"), text_of(code, "co_name"), PyFrame_GetLineNumber(frame.get())};
    if (!is_library(place.file)) break;
  }
  return place;
}

}  // namespace

void find_caller() {
  Recorder::caller() = nullptr;
  Position::call_site() = nullptr;
  auto* frame = PyEval_GetFrame();
  if (frame == nullptr) return;
  const auto [file, function, line] = place_of(frame);
  Recorder::caller() = &Registry::instance().keep_name(function);
  if (!Position::detail()) return;
  const auto site = file.substr(file.rfind('/') + 1) + ":" + std::to_string(line) + " in " + function;
  Position::call_site() = &Registry::instance().keep_name(site);
}

void add_log(py::module_& module) {
  py::class_<Log, Pass, std::shared_ptr<Log>>(module, "LogPass")
      .def(py::init(&make_log), py::arg("group"), py::arg("ops").none(true));
  module.def("log_records", records, py::arg("spans"));
  module.def("log_groups", groups);
  module.def("log_group_index", group_index, py::arg("group"));
  module.def("log_resize", [](std::size_t capacity) { Recorder::instance().resize(capacity); });
  module.def("log_capacity", [] { return Recorder::instance().capacity(); });
  module.def("log_made", [] { return Recorder::instance().made(); });
  module.def("log_lost", [] { return Recorder::instance().lost(); });
  module.def("log_now", [] { return Recorder::now(); });
  module.def("log_callers", [](bool wanted) { Recorder::want_callers(wanted); });
}

}  // namespace mcr::python
