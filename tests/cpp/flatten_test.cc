// SPDX-License-Identifier: Apache-2.0
#include "engine/flatten.h"

#include <algorithm>
#include <numeric>

#include "check.h"
#include "ranks.h"

namespace {

using namespace mcr;
using Counts = std::vector<int64_t>;
using Ints = std::vector<int32_t>;

Call call_of(Op op) {
  Call call;
  call.op = op;
  call.dtype = DType::Int;
  return call;
}

Ints numbers(int count) {
  Ints made(static_cast<std::size_t>(count));
  std::iota(made.begin(), made.end(), 0);
  return made;
}

bool same(std::span<const int64_t> got, const Counts& expected) { return std::ranges::equal(got, expected); }
bool holds(const Buffer& got, const Ints& expected) {
  const auto* values = static_cast<const int32_t*>(got.data);
  return std::equal(values, values + got.count, expected.begin(), expected.end());
}
void finish(Extras& extras) {
  for (auto& step : extras.finish) step();
}

}  // namespace

TEST(adjacent_lists_are_used_as_they_are) {
  Ints in = numbers(3), out(6);
  Extras extras;
  extras.out_blocks = {{out.data(), 3}, {out.data() + 3, 3}};
  Call call = call_of(Op::all_gather);
  call.in = {in.data(), 3};
  flatten(call, extras);
  unflatten(call, extras);
  CHECK(!call.vectored && call.out.data == out.data() && call.out.count == 6 && call.in.data == in.data());
  CHECK(extras.scratch.empty() && extras.finish.empty() && extras.counts.empty());
}

TEST(separate_inputs_are_copied) {
  Ints first{1, 2}, second{3, 4}, out(2);
  Extras extras;
  extras.in_blocks = {{first.data(), 2}, {second.data(), 2}};
  Call call = call_of(Op::reduce_scatter);
  call.out = {out.data(), 2};
  flatten(call, extras);
  CHECK(!call.vectored && call.in.data != first.data() && holds(call.in, {1, 2, 3, 4}));
  first[0] = 9;
  CHECK(holds(call.in, {1, 2, 3, 4}));
}

TEST(separate_outputs_get_their_data_in_the_end) {
  Ints first(2), second(2), in{5, 6};
  Extras extras;
  extras.out_blocks = {{first.data(), 2}, {second.data(), 2}};
  Call call = call_of(Op::all_gather);
  call.in = {in.data(), 2};
  flatten(call, extras);
  unflatten(call, extras);
  CHECK(call.out.count == 4 && extras.finish.size() == 1);
  std::ranges::copy(numbers(4), static_cast<int32_t*>(call.out.data));
  CHECK(first == Ints({0, 0}));
  finish(extras);
  CHECK(first == Ints({0, 1}) && second == Ints({2, 3}));
}

TEST(delivery_comes_last) {
  Ints first(2), second(2), seen, in{5, 6};
  Extras extras;
  extras.out_blocks = {{first.data(), 2}, {second.data(), 2}};
  extras.deliver = [&] { seen = {first[0], second[1]}; };
  Call call = call_of(Op::all_gather);
  call.in = {in.data(), 2};
  flatten(call, extras);
  unflatten(call, extras);
  unflatten(call, extras);  // once is enough
  CHECK(extras.finish.size() == 2 && extras.deliver == nullptr);
  std::ranges::copy(numbers(4), static_cast<int32_t*>(call.out.data));
  finish(extras);
  CHECK(seen == Ints({0, 3}));
}

TEST(uneven_lists_become_vectored) {
  Ints first(1), second(3), in{5, 6, 7};
  Extras extras;
  extras.out_blocks = {{first.data(), 1}, {second.data(), 3}};
  Call call = call_of(Op::all_gather);
  call.in = {in.data(), 3};
  flatten(call, extras);
  CHECK(call.vectored && same(call.out_counts, {1, 3}) && call.in_counts.empty() && call.out.count == 4);
}

TEST(adjacency_goes_by_each_tensors_own_size) {
  for (const int gap : {0, 1}) {
    Ints in = numbers(5), out(3);
    Extras extras;
    extras.in_blocks = {{in.data(), 1}, {in.data() + 1, 2}, {in.data() + 3 + gap, 1}};
    Call call = call_of(Op::reduce_scatter);
    call.out = {out.data(), 2};
    flatten(call, extras);
    CHECK(call.vectored && same(call.in_counts, {1, 2, 1}) && call.out_counts.empty());
    CHECK((call.in.data == in.data()) == (gap == 0) && holds(call.in, {0, 1, 2, 3 + gap}));
  }
}

TEST(all_to_all_lists_are_always_vectored) {
  // Another rank's list may be uneven where this one's is not.
  Ints in = numbers(4), out(4);
  Extras extras;
  extras.in_blocks = {{in.data(), 2}, {in.data() + 2, 2}};
  extras.out_blocks = {{out.data(), 2}, {out.data() + 2, 2}};
  Call call = call_of(Op::all_to_all);
  flatten(call, extras);
  CHECK(call.vectored && same(call.in_counts, {2, 2}) && same(call.out_counts, {2, 2}));
}

TEST(uneven_lists_at_the_root_are_an_error) {
  // The other ranks cannot know that the call is a vectored one.
  Ints first(1), second(3), in{5};
  Extras extras;
  extras.out_blocks = {{first.data(), 1}, {second.data(), 3}};
  Call call = call_of(Op::gather);
  call.in = {in.data(), 1};
  const auto got = ranks::failure([&] { flatten(call, extras); });
  CHECK(got.code == ErrorCode::InvalidArgument);
  CHECK(got.text == "output: expected tensors of equal size, got 1, 3 elements");
  Extras scattered;
  scattered.in_blocks = {{first.data(), 1}, {second.data(), 3}};
  Call scatter = call_of(Op::scatter);
  scatter.out = {in.data(), 1};
  const auto text = ranks::failure([&] { flatten(scatter, scattered); }).text;
  CHECK(text == "input: expected tensors of equal size, got 1, 3 elements");
}

TEST(empty_tensors_in_a_list) {
  Ints data = numbers(2);
  Extras extras;
  extras.in_blocks = {{nullptr, 0}, {data.data(), 2}, {nullptr, 0}};
  extras.out_blocks = {{nullptr, 0}, {nullptr, 0}, {nullptr, 0}};
  Call call = call_of(Op::all_to_all);
  flatten(call, extras);
  unflatten(call, extras);
  finish(extras);
  CHECK(holds(call.in, {0, 1}) && call.out.count == 0 && same(call.in_counts, {0, 2, 0}));
}

TEST(gaps_are_packed) {
  Ints in = numbers(8), out(6, -1);
  const Counts counts{2, 2}, in_displs{5, 1}, out_displs{4, 1};
  Extras extras;
  Call call = call_of(Op::all_to_all);
  call.vectored = true;
  call.in = {in.data(), 8};
  call.out = {out.data(), 6};
  call.in_counts = call.out_counts = counts;
  call.in_displs = in_displs;
  call.out_displs = out_displs;
  pack(call, extras);
  unflatten(call, extras);
  CHECK(holds(call.in, {5, 6, 1, 2}) && same(call.in_displs, {0, 2}) && same(call.out_displs, {0, 2}));
  CHECK(call.out.count == 4);
  std::ranges::copy(Ints{10, 11, 12, 13}, static_cast<int32_t*>(call.out.data));
  finish(extras);
  CHECK(out == Ints({-1, 12, 13, -1, 10, 11}));
}

TEST(a_gap_between_blocks_in_order_is_packed_too) {
  Ints in = numbers(5);
  const Counts counts{2, 2}, displs{0, 3};
  Extras extras;
  Call call = call_of(Op::reduce_scatter);
  call.vectored = true;
  call.in = {in.data(), 5};
  call.in_counts = counts;
  call.in_displs = displs;
  pack(call, extras);
  CHECK(holds(call.in, {0, 1, 3, 4}) && call.in.count == 4 && same(call.in_displs, {0, 2}));
}

TEST(packed_blocks_are_left_alone) {
  Ints data = numbers(4);
  const Counts counts{1, 3}, displs{0, 1};
  Extras extras;
  Call call = call_of(Op::all_to_all);
  call.vectored = true;
  call.in = call.out = {data.data(), 4};
  call.in_counts = call.out_counts = counts;
  call.in_displs = call.out_displs = displs;
  pack(call, extras);
  CHECK(call.in.data == data.data() && call.out.data == data.data() && extras.scratch.empty());
}

TEST(overlapping_input_is_copied) {
  Ints data = numbers(6);
  for (const int offset : {0, 3, 5}) {
    Extras extras;
    Call call = call_of(Op::all_gather);
    call.in = {data.data() + offset, 1};
    call.out = {data.data(), 6};
    separate(call, extras);
    CHECK(call.in.data != data.data() + offset && holds(call.in, {offset}) && extras.scratch.size() == 1);
  }
}

TEST(neighbours_do_not_overlap) {
  Ints data = numbers(6);
  Extras extras;
  Call call = call_of(Op::all_to_all);
  call.in = {data.data(), 3};
  call.out = {data.data() + 3, 3};
  separate(call, extras);
  std::swap(call.in, call.out);
  separate(call, extras);
  call.in = {};
  separate(call, extras);
  CHECK(extras.scratch.empty() && call.in.data == nullptr);
}
