// SPDX-License-Identifier: Apache-2.0
// Motifs: op x form x dtype x reduction x ranks x sizes, run by the interpreter; and what each motif is.
#include "algorithms/motifs.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/ops.h"
#include "check.h"
#include "interpreter.h"
#include "memory.h"
#include "ranks.h"

namespace {

using namespace mcr;
using memory::Ranks;
using memory::Setting;

constexpr int kMostRanks = 9;
constexpr int64_t kCounts[] = {1, 2, 5, 7, 64, 1000};
constexpr DType kTypes[] = {DType::Bool, DType::Byte, DType::Half, DType::Long};

// The number of motifs by the rules of planner/motifs.py.
int expected_count(const std::string& form, Op op, int64_t count, int size) {
  const auto parts = [&] { return std::stoi(form.substr(form.find(' '))); };
  if (form == "whole") return 1;
  const bool reduces = op == Op::all_reduce && size >= 2;
  if (form == "ring") return reduces ? 2 : 0;
  if (form.ends_with(", ring"))
    return reduces && count >= 2 ? 2 * static_cast<int>(std::min<int64_t>(parts(), count)) : 0;
  if (form.starts_with("tree")) {
    int levels = 0;
    for (int left = size; left > 1; left = (left + parts() - 1) / parts()) ++levels;
    return reduces ? 2 * levels : 0;
  }
  if (form.starts_with("segment")) return count >= 2 ? static_cast<int>(std::min<int64_t>(parts(), count)) : 0;
  return op == Op::all_to_all && size > parts() ? (size + parts() - 1) / parts() : 0;
}

bool refused(const Call& call, int size, const MotifForm& form) {
  Schedule schedule;
  const auto failure = ranks::failure([&] { motifs(call, 0, size, form, schedule); });
  return failure.code == ErrorCode::InvalidArgument && check::has(failure.text, row(call.op).name, "64") &&
         schedule.tasks().empty();
}

std::vector<Call> issues_of(const Schedule& schedule) {
  std::vector<Call> found;
  for (const auto& task : schedule.tasks()) {
    if (task.kind == Task::Kind::Issue) found.push_back(task.call);
  }
  return found;
}

// Issues are late and have their motif as part; what runs before the first ones is not late, so that it begins at once.
// Motifs are single calls in order, except those of a tree.
bool well_formed(const Schedule& schedule, int count, bool tree) {
  int issues = 0;
  for (const auto& task : schedule.tasks()) {
    if (task.kind != Task::Kind::Issue) continue;
    if (!task.late || task.call.variant != 0 || task.part >= count) return false;
    if (task.part != issues++ && !tree) return false;
    if (tree && !row(task.call.op).is(kPeer)) return false;
  }
  for (const auto& task : schedule.tasks()) {
    const auto late = [&](Schedule::Id id) { return schedule.tasks()[id].kind == Task::Kind::Issue; };
    if (task.kind == Task::Kind::Copy && task.late != std::ranges::any_of(schedule.after(task), late)) return false;
  }
  return issues == count || tree;
}

// The interpreter goes by what ranks send, and does not compare it with what the others expect.
bool sent_as_expected(const std::vector<Schedule>& schedules) {
  std::vector<std::vector<Call>> calls;
  for (const auto& schedule : schedules) calls.push_back(issues_of(schedule));
  for (std::size_t from = 0; from < calls.size(); ++from) {
    for (std::size_t to = 0; to < calls.size(); ++to) {
      for (std::size_t i = 0; i < calls[from].size(); ++i) {
        if (!calls[from][i].vectored) continue;
        if (calls[from][i].in_counts[to] != calls[to][i].out_counts[from]) return false;
      }
    }
  }
  return true;
}

// Whether all motifs together leave what the call means in the memory of all ranks, whatever their order.
void check_form(const std::string& text, const Setting& setting) {
  static uint32_t seed = 0;
  const auto form = MotifForm::parse(text);
  Ranks want(setting, ++seed), got(setting, seed);
  const int count = motif_count(form, got.calls[0], setting.size);
  if (count != expected_count(text, setting.op, setting.count, setting.size)) {
    return check::failed("count", 0, text + ": " + setting.text());
  }
  if (count == 0) return CHECK(refused(got.calls[0], setting.size, form));
  interpreter::perform(want.calls);
  std::vector<Schedule> schedules(static_cast<std::size_t>(setting.size));
  for (int rank = 0; rank < setting.size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    got.calls[index].variant = 3;
    motifs(got.calls[index], rank, setting.size, form, schedules[index]);
    CHECK(well_formed(schedules[index], count, form.kind == MotifForm::Kind::Tree));
  }
  CHECK(sent_as_expected(schedules));
  const auto problem = interpreter::run(schedules, seed);
  if (!problem.empty() || want != got) check::failed("motifs", 0, text + ": " + setting.text() + ": " + problem);
}

void check_sizes(const std::string& text, Op op, DType dtype, RedOp red, int most_ranks) {
  static int root = 0;
  for (int size = 1; size <= most_ranks; ++size) {
    for (const int64_t count : kCounts) {
      check_form(text, {op, dtype, red, size, count, row(op).is(kRooted) ? ++root % size : 0, false});
    }
  }
}

template <class Check>  // check(op)
void each_cuttable(const Check& check) {
  for (std::size_t i = 0; i < kOps.size(); ++i) {
    if (kOps[i].is(kCuttable)) check(static_cast<Op>(i));
  }
}

// The interpreter cannot do AVG.
void check_values(const std::string& text, int most_ranks) {
  each_cuttable([&](Op op) {
    for (const auto dtype : kTypes) {
      if (!row(op).is(kReduces)) {
        check_sizes(text, op, dtype, RedOp::SUM, most_ranks);
        continue;
      }
      for (const auto red : {RedOp::SUM, RedOp::PRODUCT, RedOp::MIN, RedOp::MAX, RedOp::BXOR}) {
        const bool rounds = dtype == DType::Half && (red == RedOp::SUM || red == RedOp::PRODUCT);
        if (rounds && MotifForm::parse(text).kind == MotifForm::Kind::Tree) continue;  // in another order, otherwise
        if (defined(dtype, red)) check_sizes(text, op, dtype, red, most_ranks);
      }
    }
  });
}

Call call_of(Op op, std::vector<int32_t>& in, std::vector<int32_t>& out) {
  Call call;
  call.op = op, call.dtype = DType::Int;
  if (!in.empty()) call.in = ranks::buffer(in);
  call.out = ranks::buffer(out);
  return call;
}

std::vector<Call> motifs_of(const Call& call, int rank, int size, const char* form) {
  Schedule schedule;
  motifs(call, rank, size, MotifForm::parse(form), schedule);
  return issues_of(schedule);
}

}  // namespace

TEST(whole_calls_mean_what_they_say) { check_values("whole", kMostRanks); }

TEST(segments_mean_what_their_call_says) {
  for (const auto* form : {"segment 2", "segment 3", "segment 4"}) check_values(form, kMostRanks);
}

// With many copies the interpreter takes long.
TEST(as_many_segments_as_there_can_be) {
  each_cuttable([](Op op) { check_sizes("segment 64", op, DType::Long, RedOp::SUM, 2); });
  each_cuttable([](Op op) { check_form("segment 64", {op, DType::Half, RedOp::MAX, 3, 67, 0, false}); });
}

TEST(rings_mean_what_their_call_says) {
  for (const auto* form : {"ring", "segment 2, ring", "segment 3, ring"}) check_values(form, kMostRanks);
}

TEST(trees_mean_what_their_call_says) {
  for (const auto* form : {"tree 2", "tree 3", "tree 4", "tree 9"}) check_values(form, kMostRanks);
}

TEST(a_tree_sends_a_tensor_twice_for_each_rank_but_the_root) {
  std::vector<int32_t> none, data(12);
  const auto call = call_of(Op::all_reduce, none, data);
  std::vector<std::vector<int>> sent, parts;  // by rank
  for (int rank = 0; rank < 6; ++rank) {
    sent.emplace_back();
    parts.emplace_back();
    Schedule schedule;
    motifs(call, rank, 6, MotifForm::parse("tree 2"), schedule);
    for (const auto& task : schedule.tasks()) {
      if (task.kind != Task::Kind::Issue || task.call.op != Op::send) continue;
      sent.back().push_back(task.call.root);
      parts.back().push_back(task.part);
      CHECK(task.call.internal && task.call.out.count == 12 * 4);
    }
  }
  CHECK((sent == std::vector<std::vector<int>>{{4, 2, 1}, {0}, {0, 3}, {2}, {0, 5}, {4}}));
  CHECK((parts == std::vector<std::vector<int>>{{3, 4, 5}, {0}, {1, 5}, {0}, {2, 5}, {0}}));
}

TEST(splines_mean_what_their_call_says) {
  for (const auto* form : {"spline 1", "spline 2", "spline 3", "spline 8"}) check_values(form, kMostRanks);
}

TEST(segments_are_alike_and_the_longer_ones_come_first) {
  std::vector<int32_t> data(11), blocks(33);
  auto call = call_of(Op::all_reduce, data, data);
  call.in = {};
  std::vector<int64_t> offsets, counts;
  for (const auto& one : motifs_of(call, 0, 3, "segment 4")) {
    offsets.push_back(static_cast<int32_t*>(one.out.data) - data.data());
    counts.push_back(one.out.count);
  }
  CHECK(offsets == std::vector<int64_t>{0, 3, 6, 9} && counts == std::vector<int64_t>{3, 3, 3, 2});
  counts.clear();
  for (const auto& one : motifs_of(call_of(Op::all_gather, data, blocks), 0, 3, "segment 4")) {
    CHECK(one.out.count == 3 * one.in.count && one.in.data >= data.data() && one.in.data < data.data() + 11);
    counts.push_back(one.in.count);
  }
  CHECK(counts == std::vector<int64_t>{3, 3, 3, 2});
}

TEST(a_ring_needs_no_copies_if_the_ranks_divide_the_tensor) {
  std::vector<int32_t> none, data(12);
  const auto call = call_of(Op::all_reduce, none, data);
  for (const int size : {4, 5}) {
    Schedule schedule;
    motifs(call, 0, size, MotifForm::parse("ring"), schedule);
    const auto issues = issues_of(schedule);
    const int64_t block = (12 + size - 1) / size;
    CHECK(issues[0].op == Op::reduce_scatter && issues[0].out.count == block && issues[0].in.count == size * block);
    CHECK(issues[1].op == Op::all_gather && issues[1].in.count == block && issues[1].out.count == size * block);
    CHECK(issues[1].in.data == issues[0].out.data && issues[1].out.data == issues[0].in.data);
    CHECK((issues[0].in.data == data.data()) == (size == 4));
    const auto copies = std::ranges::count(schedule.tasks(), Task::Kind::Copy, &Task::kind);
    CHECK(copies == (size == 4 ? 0 : 2));
  }
}

TEST(windows_of_a_spline_rotate_with_the_rank) {
  std::vector<int32_t> in(10), out(10);
  const auto call = call_of(Op::all_to_all, in, out);
  using Counts = std::vector<int64_t>;
  Schedule schedule;
  motifs(call, 3, 5, MotifForm::parse("spline 2"), schedule);
  const std::vector<Counts> sent = {{0, 0, 0, 2, 2}, {2, 2, 0, 0, 0}, {0, 0, 2, 0, 0}};
  const std::vector<Counts> received = {{0, 0, 2, 2, 0}, {2, 2, 0, 0, 0}, {0, 0, 0, 0, 2}};
  const auto issues = issues_of(schedule);
  CHECK(issues.size() == sent.size());
  for (std::size_t i = 0; i < issues.size(); ++i) {
    const auto& one = issues[i];
    CHECK(one.op == Op::all_to_all && one.vectored && one.in.data == in.data() && one.out.data == out.data());
    CHECK(std::ranges::equal(one.in_counts, sent[i]) && std::ranges::equal(one.out_counts, received[i]));
    for (const auto& displs : {one.in_displs, one.out_displs}) {
      CHECK(std::ranges::equal(displs, Counts{0, 2, 4, 6, 8}));
    }
  }
}

TEST(motifs_keep_what_the_caller_asked_for) {
  std::vector<int32_t> none, data(10), more(10);
  for (const auto* form : {"whole", "segment 3", "ring", "segment 2, ring", "spline 2"}) {
    const bool spline = std::string(form).starts_with("spline");
    auto call = spline ? call_of(Op::all_to_all, more, data) : call_of(Op::all_reduce, none, data);
    call.red = RedOp::AVG, call.priority = -4, call.timeout = std::chrono::milliseconds(77);
    for (const auto& one : motifs_of(call, 1, 5, form)) {
      CHECK(one.dtype == DType::Int && one.red == RedOp::AVG && one.priority == -4 && one.timeout == call.timeout);
    }
  }
  auto call = call_of(Op::reduce, none, data);
  call.root = 4;
  for (const auto& one : motifs_of(call, 1, 5, "segment 3")) CHECK(one.root == 4);
}

TEST(what_has_no_such_form) {
  std::vector<int32_t> none, data(12);
  const auto segment = MotifForm::parse("segment 2"), ring = MotifForm::parse("ring"),
             whole = MotifForm::parse("whole");
  auto call = call_of(Op::all_reduce, none, data);
  CHECK(motif_count(ring, call, 4) == 2 && motif_count(ring, call, 1) == 0);
  for (const auto red : {RedOp::SUM, RedOp::AVG, RedOp::BAND}) {
    call.red = red;
    CHECK(motif_count(ring, call, 4) == 2 && motif_count(segment, call, 4) == 2);
  }
  call.red = RedOp::PREMUL_SUM;
  CHECK(refused(call, 4, ring) && refused(call, 4, segment) && motif_count(whole, call, 4) == 1);
  for (const auto op : {Op::send, Op::recv, Op::barrier, Op::gather, Op::scatter}) {
    const auto other = call_of(op, none, data);
    CHECK(refused(other, 4, segment) && refused(other, 4, ring) && motif_count(whole, other, 4) == 1);
  }
  auto exchange = call_of(Op::all_to_all, data, data);
  CHECK(motif_count(MotifForm::parse("spline 2"), exchange, 4) == 2 &&
        refused(exchange, 4, MotifForm::parse("spline 4")));
  exchange.vectored = true;
  CHECK(refused(exchange, 4, MotifForm::parse("spline 2")) && refused(exchange, 4, segment));
  CHECK(motif_count(whole, exchange, 4) == 1);
}

TEST(a_call_has_at_most_64_motifs) {
  std::vector<int32_t> none, data(200), more(200);
  const auto call = call_of(Op::all_reduce, none, data);
  CHECK(motifs_of(call, 0, 2, "segment 64").size() == 64);
  CHECK(motif_count(MotifForm::parse("segment 65"), call, 2) == 65);
  CHECK(refused(call, 2, MotifForm::parse("segment 65")));
  const auto exchange = call_of(Op::all_to_all, data, more);
  CHECK(refused(exchange, 100, MotifForm::parse("spline 1")));
  CHECK(motifs_of(exchange, 99, 100, "spline 2").size() == 50);
}

TEST(forms_have_names) {
  using Kind = MotifForm::Kind;
  const auto is = [](const char* text, Kind kind) { return MotifForm::parse(text).kind == kind; };
  CHECK(is("whole", Kind::Whole) && is("ring", Kind::Ring) && is("tree 2", Kind::Tree));
  CHECK(is("segment 3, ring", Kind::Ring) && MotifForm::parse("segment 3, ring").parts == 3);
  CHECK(is("segment 2", Kind::Segment) && MotifForm::parse("segment 17").parts == 17);
  CHECK(is("spline 1", Kind::Spline) && MotifForm::parse("spline 2147483647").parts == std::numeric_limits<int>::max());
  for (const auto* text : {"",
                           "wholes",
                           "Ring",
                           "ring 2",
                           "segment",
                           "segment ",
                           "segment 1",
                           "segment -2",
                           "segment 2 ",
                           "segment 2147483648",
                           "segments 2",
                           "spline",
                           "spline 0",
                           "spline x",
                           "tree",
                           "tree 1",
                           "segment 1, ring",
                           "segment, ring",
                           "segment 2,ring",
                           "segment 2, rings",
                           "ring, segment 2",
                           "segment "}) {
    const auto failure = ranks::failure([&] { MotifForm::parse(text); });
    CHECK(failure.code == ErrorCode::InvalidArgument);
    CHECK(check::has(failure.text,
                     "whole, segment K, ring, 'segment K, ring', tree N or spline N, got '" + std::string(text) + "'"));
  }
}
