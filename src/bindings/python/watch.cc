// SPDX-License-Identifier: Apache-2.0
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/immortal.h"
#include "bindings/python/arguments.h"
#include "bindings/python/errors.h"
#include "bindings/python/none.h"
#include "bindings/python/parts.h"
#include "bindings/python/unlocked.h"
#include "bindings/python/work.h"
#include "engine/wait.h"
#include "group/group.h"
#include "observe/activity.h"
#include "observe/interrupt.h"
#include "observe/position.h"
#include "observe/stop.h"
#include "runtime/registry.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

using std::chrono::steady_clock;

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

py::object bytes_or_none(int64_t bytes) { return or_none(bytes >= 0, bytes); }

py::dict dict_of(const Entered& entered) {
  const auto& op = row(entered.op);
  py::dict call;
  call["seq"] = entered.seq;
  call["op"] = operation_name(entered.op, entered.vectored);
  call["dtype"] = or_none(op.extent != Extent::None, row(entered.dtype).name);
  call["red"] = or_none(op.is(kReduces), name(entered.red));
  call["root"] = or_none(op.is(kRooted), entered.root);
  call["bytes"] = bytes_or_none(entered.bytes);
  call["layout"] = text_or_none(entered.layout);
  call["priority"] = entered.priority;
  call["backend"] = text_or_none(entered.backend);
  call["async"] = entered.asynchronous;
  call["caller"] = text_or_none(entered.caller);
  call["history"] = std::to_string(entered.history);
  return call;
}

// `from`: by number, the first collective of interest. `most`: collectives of each group, the newest.
py::list positions(const std::map<int64_t, int64_t>& from, std::size_t most) {
  py::list result;
  for (const auto& position : Position::all()) {
    const auto first = from.find(position->number());
    const auto reading = position->read(first == from.end() ? 0 : first->second);
    py::list calls;
    const auto& newest = reading.newest;
    const auto left_out = newest.size() - std::min(newest.size(), most);
    for (const auto& entered : std::span(newest).subspan(left_out)) calls.append(dict_of(entered));
    py::dict group;
    group["group"] = position->group();
    group["label"] = position->label();
    group["number"] = position->number();
    group["former"] = position->former();
    group["derived"] = position->derived();
    group["ranks"] = position->ranks();
    group["rank"] = position->rank();
    group["collectives"] = reading.collectives;
    group["messages"] = reading.messages;
    group["calls"] = calls;
    result.append(group);
  }
  return result;
}

py::list take_messages() {
  py::list result;
  for (const auto& position : Position::all()) {
    const auto taken = position->take_traffic();
    if (taken.runs.empty() && !taken.lost) continue;
    py::list runs;
    for (const auto& run : taken.runs) {
      const auto& [sends, peer, tag, backend] = run.stream;
      const auto from = peer == kAnyRank ? peer : position->ranks()[static_cast<std::size_t>(peer)];
      runs.append(py::make_tuple(sends, from, tag, text_or_none(backend), std::string(row(run.dtype).name), run.bytes,
                                 text_or_none(run.layout), text_or_none(run.caller), run.count));
    }
    result.append(py::make_tuple(position->number(), runs, taken.lost));
  }
  return result;
}

py::list activities() {
  py::list result;
  for (const auto& reading : Activity::all()) {
    const auto& what = reading.what;
    py::dict activity;
    activity["turn"] = reading.turn;
    activity["thread"] = reading.thread;
    activity["label"] = text_or_none(what.label);
    activity["backend"] = text_or_none(what.backend);
    activity["op"] = what.connects ? std::string("connect") : std::string(row(what.op).name);
    activity["message"] = !what.connects && row(what.op).is(kPeer);
    activity["seq"] = what.seq;
    activity["bytes"] = bytes_or_none(what.bytes);
    activity["limit"] = seconds(what.limit);
    activity["waits"] = what.waits;
    result.append(activity);
  }
  return result;
}

py::tuple with_facts(std::shared_ptr<Work> work, steady_clock::time_point now) {
  const auto& call = work->context();
  py::dict known;
  known["what"] = work->what();
  known["label"] = text_or_none(call.group);
  known["backend"] = text_or_none(call.backend);
  known["op"] = row(call.op).name;
  known["message"] = row(call.op).is(kPeer);
  known["seq"] = call.seq;
  known["bytes"] = bytes_or_none(call.bytes);
  known["limit"] = seconds(call.limit);
  known["age"] = seconds(work->observed(now));
  known["behind"] = unlocked([&] { return work->behind(); });
  return py::make_tuple(std::move(work), known);
}

bool has_lost(const Work& work, std::map<const std::string*, bool>& known) {
  const auto* label = work.context().group;
  if (label == nullptr) return false;
  const auto [found, added] = known.try_emplace(label, false);
  if (added) found->second = Position::lost(*label) != nullptr;
  return found->second;
}

// `lost`: of groups with a lost rank alone. Others, and those that have failed but run on inside the library, must not
// hide them.
py::list pending(std::size_t most, bool lost) {
  py::list result;
  const auto now = steady_clock::now();
  std::map<const std::string*, bool> known;  // by label, whether the group has lost a rank
  const auto wanted = [&](const Work& work) { return !work.completed() && (!lost || has_lost(work, known)); };
  for (auto& work : unlocked([&] { return Registry::instance().watched(most, wanted); })) {
    result.append(with_facts(std::move(work), now));
  }
  return result;
}

// Called ten times a second, so only overdue Works become Python objects.
py::list overdue(double grace) {
  constexpr std::size_t kMost = 1000;  // per backend
  const auto now = steady_clock::now();
  const auto allowed = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(grace));
  const auto late = [&](Work& work) { return work.overdue(now, allowed); };
  py::list result;
  for (auto& work : unlocked([&] { return Registry::instance().watched(kMost, late); }))
    result.append(with_facts(std::move(work), now));
  return result;
}

// Work that a device runs for a group with a lost rank never ends, and neither does later work on its streams.
void give_up_streams(Group& group) {
  for (const auto& communicator : group.communicators()) {
    if (communicator->streams()) communicator->give_up();
  }
}

// For a forked process: the libraries' threads, which would have to end the freed objects' operations, do not exist
// there.
void keep_forever(std::shared_ptr<Group> group) {
  static auto& kept = immortal<std::vector<std::shared_ptr<Group>>>();
  group->position().end();
  kept.push_back(std::move(group));
}

// ---- libraries that end the process: gloo does, on a thread of its own, if ranks have made different calls

std::terminate_handler usual_end = nullptr;
constexpr auto kVerdict = std::chrono::milliseconds(1500);  // until the ranks' calls have been compared

// Otherwise the other ranks would see a lost connection before they know why.
[[noreturn]] void end_with_reason() {
  const auto deadline = steady_clock::now() + kVerdict;
  while (!Stop::requested() && steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (Stop::requested()) std::fprintf(stderr, "mcr_dl: DesyncError: %s\n", Stop::text().c_str());
  usual_end();
  std::abort();
}

void set_detail(bool detail) {
  Position::set_detail(detail);
  if (detail && usual_end == nullptr) usual_end = std::set_terminate(end_with_reason);
}

// The seconds since the latest Ctrl-C, and the turn of the main thread's activity at which it came.
std::optional<std::pair<double, uint64_t>> latest_interrupt() {
  const auto latest = Interrupts::latest();
  if (!latest) return std::nullopt;
  return std::pair(seconds(latest->age), latest->turn);
}

int exit_code = 0;

// Makes the process end with this code, regardless of Python's own exit code. Runs after the interpreter has ended;
// exit handlers that were registered earlier do not run.
void fail_at_exit(int code) {
  exit_code = code;
  std::atexit([] {
    std::fflush(nullptr);
    _exit(exit_code);
  });
}

}  // namespace

void add_watch(py::module_& module) {
  module.def(
      "timeout",
      [](const py::object& value, const std::string& name) { return python::milliseconds(value.ptr(), name.c_str()); },
      py::arg("value"), py::arg("name") = "timeout");
  module.def("positions", positions, py::arg("since") = std::map<int64_t, int64_t>(),
             py::arg("most") = Position::kKeptInDetail);
  module.def("take_messages", take_messages);
  module.def("activities", activities);
  module.def("pending", pending, py::arg("most") = 1000, py::arg("lost") = false);
  module.def("overdue", overdue, py::arg("grace"));
  module.def(
      "expire",
      [](const std::shared_ptr<Work>& work, const std::string& text, bool lost) {
        return unlocked([&] { return work->expire(lost ? ErrorCode::PeerLost : ErrorCode::Timeout, text); });
      },
      py::arg("work"), py::arg("text"), py::arg("lost") = false);
  module.def("lose", [](int rank, const std::string& text) { Position::lose(rank, text); });
  module.def("regain", Position::regain);
  module.def("lost", [](const std::string& label) {
    const auto* text = Position::lost(label);
    return text == nullptr ? std::nullopt : std::optional(*text);
  });
  module.def("stop_desync", [](const std::string& text) { Stop::request(ErrorCode::Desync, text); });
  module.def("stop_forked", &Stop::note_fork);
  module.def("clear_stop", [] {
    Stop::clear();
    Position::forget_losses();
  });
  module.def("take_desync", Stop::take_desync);
  module.def("fail_at_exit", fail_at_exit);
  module.def("give_up", [](Group& group) { unlocked([&] { mcr::abort(group); }); });
  module.def("give_up_streams", [](Group& group) { unlocked([&] { give_up_streams(group); }); });
  module.def("keep_forever", keep_forever);
  module.def("set_detail", set_detail);
  module.def("set_explainer", [](const py::object& function) { set_explainer(function.ptr()); });
  module.def("watch_interrupts", Interrupts::watch);
  module.def("latest_interrupt", latest_interrupt);
}

}  // namespace mcr::python
