// SPDX-License-Identifier: Apache-2.0
// Sends and receives.
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "backends/shm/messages.h"
#include "shm_ranks.h"

using namespace shm_ranks;

namespace {

/// The messages of two ranks, each of which moves only where a test says so.
class Two {
 public:
  explicit Two(bool reads = true)
      : layout_({.ranks = 2, .most = shm::Layout::least(2)}),
        file_(Memory::make(layout_.bytes(), shm::kBound)),
        segment_(layout_, Memory::map(file_, layout_.bytes(), shm::kBound)),
        memory_(reads ? std::vector<pid_t>(2, getpid()) : std::vector<pid_t>(), {}) {}

  std::shared_ptr<shm::Message> start(int rank, bool sends, std::vector<std::byte>& data, int tag = 0) {
    auto message = std::make_shared<shm::Message>();
    message->sends = sends;
    message->data = data.data();
    message->bytes = std::ssize(data);
    message->peer = 1 - rank;
    message->tag = tag;
    ranks_[static_cast<std::size_t>(rank)].start(message);
    return message;
  }
  /// Returns the bytes that count as moved.
  int64_t move(int rank) {
    shm::Burst burst;
    ranks_[static_cast<std::size_t>(rank)].progress(burst);
    return shm::Burst().left - burst.left;
  }
  /// Sends short messages to the other rank, which does not move, until one has no space in the ring.
  void fill_ring(int rank) {
    static std::vector<std::byte> data(512);
    constexpr int kTag = 9;
    while (start(rank, true, data, kTag)->done) continue;
  }
  bool idle(int rank) const { return ranks_[static_cast<std::size_t>(rank)].idle(); }
  void withdraw(int rank, const std::shared_ptr<shm::Message>& message) {
    ranks_[static_cast<std::size_t>(rank)].withdraw(message);
  }

 private:
  const shm::Layout layout_;
  const File file_;
  shm::Segment segment_;
  const shm::PeerMemory memory_;
  std::array<shm::Messages, 2> ranks_{shm::Messages(segment_, memory_, 0), shm::Messages(segment_, memory_, 1)};
};

}  // namespace

TEST(messages_match_by_rank_tag_and_order) {
  together(3, [&](shm::Engine& engine, int rank) {
    const int next = (rank + 1) % 3;
    const int before = (rank + 2) % 3;
    for (const auto count : {int64_t{0}, int64_t{1}, int64_t{2'000}, int64_t{2'100}, int64_t{200'000}}) {
      // Three messages, received in another order; the second of tag 7 after the first.
      std::vector<Numbers> sent = {values(rank, count), values(rank, count, 1), values(rank, count, 2)};
      std::vector<Numbers> got(3, Numbers(static_cast<std::size_t>(count)));
      Requests requests;
      const auto start = [&](Op op, Numbers& data, int peer, int tag) {
        Lane lane(false);
        auto call = call_of(op, nullptr, &data, peer);
        call.tag = tag;
        engine.message(call, lane);
        for (auto& request : lane.take()) requests.push_back(std::move(request));
      };
      start(Op::send, sent[0], next, 7);
      start(Op::send, sent[1], next, 3);
      start(Op::send, sent[2], next, 7);
      start(Op::recv, got[1], before, 3);
      start(Op::recv, got[0], kAnyRank, 7);
      start(Op::recv, got[2], before, 7);
      wait(std::move(requests));
      for (int i = 0; i < 3; ++i) CHECK(got[static_cast<std::size_t>(i)] == values(before, count, i));
    }
    run(engine, call_of(Op::barrier, nullptr, nullptr));
  });
}

TEST(a_message_of_another_size_is_an_error_of_the_receiver) {
  for (const int64_t sent : {int64_t{10}, int64_t{100'000}}) {
    together(2, [&](shm::Engine& engine, int rank) {
      for (const int64_t expected : {sent - 1, sent + 1}) {
        auto data = values(rank, rank == 0 ? sent : expected);
        if (rank == 0) {
          run(engine, call_of(Op::send, nullptr, &data, 1));
          continue;
        }
        const auto failure = ranks::failure([&] { run(engine, call_of(Op::recv, nullptr, &data, 0)); });
        CHECK(failure.code == ErrorCode::InvalidArgument);
        if (expected < sent) CHECK(check::has(failure.text, "the incoming message is larger than the tensor of"));
        if (expected > sent) CHECK(check::has(failure.text, "received " + std::to_string(sent) + " of the tensor of"));
      }
      run(engine, call_of(Op::barrier, nullptr, nullptr));
    });
  }
}

TEST(a_message_that_is_given_up_is_not_read) {
  std::atomic<int> step{0};
  const auto reached = [&](int wanted) {
    while (step < wanted) std::this_thread::yield();
  };
  together(2, [&](shm::Engine& engine, int rank) {
    auto data = values(rank, 1 << 20);
    Lane lane(false);
    engine.message(call_of(rank == 0 ? Op::send : Op::recv, nullptr, &data, 1 - rank), lane);
    auto requests = lane.take();
    if (rank == 0) {
      reached(1);  // the receiver has taken the request
      engine.progress();
      requests.clear();
      step = 2;
      return;
    }
    while (engine.progress(), step == 0) {
      if (shared->ring(1, 0).written.load() != 0) step = 1;
    }
    reached(2);
    const auto failure = ranks::failure([&] { wait(std::move(requests)); });
    CHECK(failure.code == ErrorCode::Backend && check::has(failure.text, "rank 0 of the group has given up a message"));
  });
}

TEST(many_short_messages_wait_for_a_late_receiver) {
  constexpr int kMessages = 3'000;
  together(2, [&](shm::Engine& engine, int rank) {
    auto data = values(0, kMessages);
    Requests requests;
    Numbers got(kMessages);
    if (rank == 1) run(engine, call_of(Op::barrier, nullptr, nullptr));
    for (std::size_t i = 0; i < kMessages; ++i) {
      Call call;
      call.op = rank == 0 ? Op::send : Op::recv;
      call.dtype = DType::Int;
      call.out = {rank == 0 ? &data[i] : &got[i], 1};
      call.root = 1 - rank;
      Lane lane(false);
      engine.message(call, lane);
      for (auto& request : lane.take()) requests.push_back(std::move(request));
    }
    if (rank == 0) run(engine, call_of(Op::barrier, nullptr, nullptr));
    wait(std::move(requests));
    if (rank == 1) CHECK(got == data);
  });
}

// A rank that has no incomplete call may leave at any time: then no other rank may wait for it.
TEST(a_receive_is_complete_when_its_sender_can_learn_of_it) {
  struct Case {
    std::size_t bytes;  // of the receive
    bool withdrawn;
  };
  constexpr std::size_t kSent = 64 << 10;  // as much as is read directly
  for (const auto& [bytes, withdrawn] : {Case{kSent, false}, Case{kSent / 2, false}, Case{kSent, true}}) {
    Two two;
    std::vector<std::byte> from(kSent, std::byte{7}), to(bytes);
    const auto receive = two.start(1, false, to);
    const auto send = two.start(0, true, from);
    two.move(0);  // asks
    if (bytes == kSent) {
      two.move(1);  // accepts
      two.move(0);  // offers
    }
    two.fill_ring(1);
    two.move(1);  // reads, or refuses
    CHECK(!receive->done && !two.idle(1));
    if (withdrawn) two.withdraw(1, receive);
    two.move(0);  // makes space
    two.move(1);
    CHECK(withdrawn || receive->done);
    CHECK(two.idle(1));
    CHECK(receive->error.has_value() == (bytes != kSent));
    CHECK(bytes != kSent || to == from);
    two.move(0);
    CHECK(send->done && two.idle(0));
  }
}

// In the rings on both sides, in direct reads on the receiver: turns are bounded in either way.
TEST(the_bytes_of_messages_count_as_moved) {
  constexpr int64_t kSent = 1 << 20;
  for (const bool reads : {false, true}) {
    Two two(reads);
    std::vector<std::byte> from(kSent, std::byte{7}), to(kSent);
    const auto receive = two.start(1, false, to);
    const auto send = two.start(0, true, from);
    int64_t sent = 0, received = 0;
    while (!send->done || !receive->done) {
      sent += two.move(0);
      received += two.move(1);
    }
    CHECK(to == from && received >= kSent);
    CHECK(reads ? sent < kSent : sent >= kSent);
  }
}

TEST(a_large_message_does_not_hold_up_collectives) {
  std::atomic<bool> arrives{false};
  std::promise<void> entered;
  together(2, [&](shm::Engine& engine, int rank) {
    constexpr int64_t kLarge = 8 << 20;
    auto data = rank == 0 ? values(0, kLarge) : Numbers(kLarge), small = values(rank, 9);
    const auto transfer = call_of(rank == 0 ? Op::send : Op::recv, nullptr, &data, 1 - rank);
    Lane message(false), collective(false);
    if (rank == 1) engine.collective(call_of(Op::all_reduce, nullptr, &small), collective);
    engine.message(transfer, message);
    auto moving = message.take();
    if (rank == 0) {
      while (!arrives) CHECK(!moving.front()->poll());
      engine.collective(call_of(Op::all_reduce, nullptr, &small), collective);
      entered.set_value();
      wait(collective.take());
    } else {
      while (data.front() == 0) CHECK(!moving.front()->poll());
      arrives = true;
      entered.get_future().wait();
      wait(collective.take());
      CHECK(!moving.front()->poll());
    }
    wait(std::move(moving));
    CHECK(data == values(0, kLarge) && small == sums(2, 9));
  });
}
