// SPDX-License-Identifier: Apache-2.0
// The sends and receives that a process keeps for the comparison with the other ranks.
#include "observe/traffic.h"

#include <thread>

#include "check.h"
#include "observe/position.h"

namespace {

using namespace mcr;

const std::string kBackend = "mpi", kOther = "gloo", kHere = "a.py:1 in f", kThere = "a.py:2 in f";

Call message(Op op, int peer, int64_t count = 4, int tag = 0) {
  Call call;
  call.op = op;
  call.dtype = DType::Float;
  call.root = peer;
  call.tag = tag;
  call.out.count = count;
  return call;
}

std::vector<int64_t> counts(const Traffic::Taken& taken) {
  std::vector<int64_t> found;
  for (const auto& run : taken.runs) found.push_back(run.count);
  return found;
}

using Counts = std::vector<int64_t>;

}  // namespace

TEST(traffic_joins_equal_messages_of_one_stream) {
  Traffic traffic;
  int64_t number = 0;
  for (int i = 0; i < 10; ++i) {
    traffic.add(message(Op::send, 1), &kBackend, &kHere, ++number);
    traffic.add(message(Op::recv, 1), &kBackend, &kHere, ++number);
  }
  traffic.add(message(Op::send, 1), &kOther, &kHere, ++number);
  traffic.add(message(Op::send, 1, 5), &kBackend, &kHere, ++number);
  traffic.add(message(Op::send, 1, 5), &kBackend, &kThere, ++number);
  traffic.add(message(Op::send, 1, 4, 7), &kBackend, &kHere, ++number);
  const auto taken = traffic.take();
  CHECK(counts(taken) == (Counts{10, 10, 1, 1, 1, 1}) && !taken.lost);
  CHECK(taken.runs[0].stream.sends && !taken.runs[1].stream.sends && taken.runs[0].bytes == 16);
  CHECK(taken.runs[3].bytes == 20 && taken.runs[5].stream.tag == 7 && *taken.runs[4].caller == kThere);
  CHECK(traffic.take().runs.empty());
}

TEST(traffic_after_a_receive_from_any_rank) {
  Traffic traffic;
  traffic.add(message(Op::recv, 1), &kBackend, &kHere, 1);
  traffic.add(message(Op::recv, kAnyRank), &kBackend, &kHere, 2);
  traffic.add(message(Op::recv, 1), &kBackend, &kHere, 3);
  traffic.add(message(Op::recv, 1, 4, 7), &kBackend, &kHere, 4);
  traffic.add(message(Op::recv, 1), &kOther, &kHere, 5);
  traffic.add(message(Op::send, 1), &kBackend, &kHere, 6);
  const auto first = traffic.take();
  CHECK(counts(first) == (Counts{1, 2, 1, 1, 1}));
  CHECK(first.runs[0].stream.peer == 1 && first.runs[1].stream.peer == kAnyRank && first.runs[2].stream.peer == 1);
  traffic.add(message(Op::recv, 1), &kBackend, &kHere, 7);
  CHECK(traffic.take().runs[0].stream.peer == kAnyRank);
}

TEST(traffic_withdraws_a_refused_message) {
  Traffic traffic;
  traffic.add(message(Op::send, 1), &kBackend, &kHere, 1);
  traffic.add(message(Op::send, 1), &kBackend, &kHere, 2);
  traffic.withdraw(2);
  traffic.add(message(Op::send, 1, 5), &kBackend, &kHere, 3);
  traffic.withdraw(3);
  traffic.add(message(Op::send, 1, 6), &kBackend, &kHere, 4);
  CHECK(counts(traffic.take()) == (Counts{1, 1}));
  traffic.add(message(Op::send, 1, 6), &kBackend, &kHere, 5);
  CHECK(!traffic.take().lost);
  traffic.withdraw(5);
  CHECK(traffic.take().lost);
}

TEST(traffic_is_bounded) {
  Traffic traffic;
  for (int64_t i = 0; i <= static_cast<int64_t>(Traffic::kMost); ++i) {
    traffic.add(message(Op::send, 1, i), &kBackend, &kHere, i + 1);
  }
  const auto taken = traffic.take();
  CHECK(taken.lost && taken.runs.empty());
  traffic.add(message(Op::send, 1), &kBackend, &kHere, 1);
  CHECK(traffic.take().lost);
}

TEST(positions_keep_traffic_in_detail_mode_alone) {
  const std::string group = "g", label = "group 'g', rank 0 of 2";
  const auto plain = Position::make(group, label, {0, 1}, 0);
  CHECK(plain->enter(message(Op::send, 1), &kBackend, 16) == 1);
  plain->withdraw_message(1);
  CHECK(plain->take_traffic().runs.empty());
  Position::set_detail(true);
  const auto kept = Position::make(group, label, {0, 1}, 0);
  Position::set_detail(false);
  constexpr int kEach = 1000;
  const auto work = [&] {
    for (int i = 0; i < kEach; ++i) kept->enter(message(Op::send, 1), &kBackend, 16);
  };
  std::thread one(work), other(work);
  int64_t sum = 0;
  const auto take = [&] {
    for (const auto count : counts(kept->take_traffic())) sum += count;
  };
  for (int i = 0; i < 100; ++i) take();
  one.join();
  other.join();
  take();
  CHECK(sum == 2 * kEach && kept->read().messages == 2 * kEach);
}
