// SPDX-License-Identifier: Apache-2.0
// Calls that do not match, fail or are given up: each is an error in time, and never wrong data.
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <future>
#include <utility>

#include "backends/shm/sockets.h"
#include "shm_ranks.h"

using namespace shm_ranks;

namespace {

using Counts = std::vector<int64_t>;

/// Packed blocks of these counts, by rank.
struct Vectored {
  Vectored(Op op, int64_t in, int64_t out, Counts in_counts, Counts out_counts, int root = 0)
      : in_(values(0, in)),
        out_(static_cast<std::size_t>(out)),
        in_counts_(std::move(in_counts)),
        out_counts_(std::move(out_counts)),
        in_displs_(packed(in_counts_)),
        out_displs_(packed(out_counts_)) {
    call_ = call_of(op, &in_, &out_, root);
    call_.vectored = true;
    call_.in_counts = in_counts_;
    call_.in_displs = in_displs_;
    call_.out_counts = out_counts_;
    call_.out_displs = out_displs_;
  }
  Vectored(const Vectored&) = delete;
  Vectored& operator=(const Vectored&) = delete;
  const Call& call() const { return call_; }

 private:
  static Counts packed(const Counts& counts) {
    Counts displs;
    int64_t end = 0;
    for (const auto count : counts) displs.push_back(std::exchange(end, end + count));
    return displs;
  }

  Numbers in_, out_;
  Counts in_counts_, out_counts_, in_displs_, out_displs_;
  Call call_;
};

Requests start(shm::Engine& engine, const Call& call) {
  Lane lane(false);
  begin(engine, call, lane);
  return lane.take();
}

/// The error of the call, if it comes within ten seconds.
ranks::Failure failure_in_time(shm::Engine& engine, const Call& call) {
  return ranks::failure([&] {
    const auto end = std::chrono::steady_clock::now() + 10s;
    const auto requests = start(engine, call);
    for (const auto& request : requests) {
      while (!request->poll()) {
        if (std::chrono::steady_clock::now() > end) throw Error(ErrorCode::Timeout, "no error in time");
        request->block(10ms);
      }
    }
  });
}

constexpr const char* kDifferent = "the ranks have made different calls";

}  // namespace

// Rank 0's thread reads a large message in one turn, which takes long, and then finds another call of rank 1. Meanwhile
// rank 0 makes the call that rank 1 has made: it must not match that one.
TEST(a_call_that_waited_while_the_group_failed_raises_the_error) {
  constexpr int64_t kLarge = shm::Burst().left / 32 * 7;  // elements: most of a turn
  for (const auto op : {Op::all_reduce, Op::send}) {
    const auto sent = std::make_unique_for_overwrite<int32_t[]>(kLarge);
    const auto received = std::make_unique_for_overwrite<int32_t[]>(kLarge);
    std::array<std::promise<void>, 4> steps;
    const auto reached = [&](std::size_t step) { steps.at(step).get_future().wait(); };
    together(2, [&](shm::Engine& engine, int rank) {
      auto first = values(rank, 64), other = values(rank, 32);
      auto message = call_of(rank == 1 ? Op::send : Op::recv, nullptr, nullptr, 1 - rank);
      message.out = {rank == 1 ? sent.get() : received.get(), kLarge};
      if (rank == 1) {
        const auto large = start(engine, message);
        steps[0].set_value();
        reached(1);
        engine.progress();  // offers the data
        const auto failure = ranks::failure([&] { run(engine, call_of(Op::all_reduce, nullptr, &other)); });
        CHECK(check::has(failure.text, kDifferent));
        steps[2].set_value();
        reached(3);
        return;
      }
      const auto requests = start(engine, call_of(Op::all_reduce, nullptr, &first));
      const auto large = start(engine, message);
      reached(0);
      engine.progress();  // answers the request
      steps[1].set_value();
      reached(2);
      std::atomic<bool> ended{false};
      std::thread thread([&] {
        engine.progress();
        ended = true;
      });
      const auto small = call_of(Op::all_reduce, nullptr, &other);
      while (engine.brief(small) && !ended) shm::pause();
      const auto failure = ranks::failure([&] { run(engine, call_of(op, nullptr, &other, 1)); });
      CHECK(failure.code == ErrorCode::Backend && check::has(failure.text, kDifferent));
      CHECK(other == values(0, 32));
      thread.join();
      steps[3].set_value();
    });
  }
}

TEST(ranks_with_different_counts_raise_errors) {
  // The longest block, or the sum, is equal; the blocks lie elsewhere.
  for (const int64_t unit : {10, 10'000, 100'000}) {
    for (int time = 0; time < 8; ++time) {
      together(2, [&](shm::Engine& engine, int rank) {
        const Counts counts = rank == 0 ? Counts{unit, 3 * unit} : Counts{3 * unit, unit};
        const Vectored gather(Op::all_gather, unit, 4 * unit, {}, counts);
        const auto failure = failure_in_time(engine, gather.call());
        CHECK(failure.code == ErrorCode::Backend && check::has(failure.text, kDifferent));
      });
      together(2, [&](shm::Engine& engine, int rank) {
        const Counts counts = rank == 0 ? Counts{unit, 3 * unit} : Counts{2 * unit, 2 * unit};
        const Vectored scatter(Op::reduce_scatter, 4 * unit, (rank + 1) * unit, counts, {});
        const auto failure = failure_in_time(engine, scatter.call());
        CHECK(failure.code == ErrorCode::Backend && check::has(failure.text, kDifferent));
      });
    }
  }
}

// No rank reads another one's data: the next call in which some do finds the difference, whatever its size.
TEST(ranks_that_all_take_themselves_for_the_root_raise_errors_later) {
  for (const auto op : {Op::broadcast, Op::scatter}) {
    for (const auto& [count, later] : {std::pair{9, 9}, std::pair{9, 100'000}, std::pair{100'000, 9}}) {
      together(2, [&](shm::Engine& engine, int rank) {
        auto block = values(rank, count), whole = values(rank, 2 * count), sum = values(rank, later);
        run(engine, call_of(op, op == Op::scatter ? &whole : nullptr, &block, rank));
        const auto failure = failure_in_time(engine, call_of(Op::all_reduce, nullptr, &sum));
        CHECK(failure.code == ErrorCode::Backend && check::has(failure.text, kDifferent));
        CHECK(sum == values(rank, later));
      });
    }
  }
}

TEST(equal_counts_match_a_call_without_counts) {
  together(2, [](shm::Engine& engine, int rank) {
    if (rank == 0) return run(engine, Vectored(Op::all_gather, 10, 20, {}, {10, 10}).call());
    auto in = values(rank, 10);
    Numbers out(20);
    run(engine, call_of(Op::all_gather, &in, &out));
    CHECK(std::equal(out.begin() + 10, out.end(), in.begin()));
  });
}

// Only a rank that receives sees the difference; its error ends the calls of the others.
TEST(different_exchanges_raise_errors) {
  for (const int64_t count : {8, 5'000, 100'000}) {
    std::promise<void> known;
    together(2, [&](shm::Engine& engine, int rank) {
      const auto next = call_of(Op::barrier, nullptr, nullptr);
      if (rank == 0) {
        const Vectored all(Op::all_to_all, 2 * count, 2 * count, {count, count}, {count, count});
        const auto failure = failure_in_time(engine, all.call());
        CHECK(failure.code == ErrorCode::Backend && check::has(failure.text, kDifferent, "rank 1"));
        CHECK(check::has(failure_in_time(engine, next).text, kDifferent));
        known.get_future().wait();
      } else {
        failure_in_time(engine, Vectored(Op::gather, count, 0, {}, {}).call());
        const auto failure = failure_in_time(engine, next);
        CHECK(failure.code == ErrorCode::Backend);
        CHECK(check::has(failure.text, "rank 0 of group 'default' takes part no more"));
        known.set_value();
      }
    });
  }
}

// The root does not need the other rank for its first calls, and that rank lives on.
TEST(an_error_of_one_rank_ends_the_calls_of_the_others) {
  for (const int64_t count : {9, 100'000}) {
    std::atomic<bool> known{false};
    together(3, [&](shm::Engine& engine, int rank) {
      auto data = values(rank, count + (rank == 1 ? 0 : 1));
      const auto call = call_of(Op::broadcast, nullptr, &data);
      ranks::Failure failure;
      for (int calls = 0; calls < 100 && failure.text.empty(); ++calls) failure = failure_in_time(engine, call);
      CHECK(failure.code == ErrorCode::Backend);
      if (rank == 1) {
        CHECK(check::has(failure.text, kDifferent));
        while (!known) std::this_thread::yield();
      } else {
        CHECK(check::has(failure.text, "rank 1 of group 'default' takes part no more"));
      }
      if (rank == 0) known = true;
    });
  }
}

// The receiver accepts it after it has been given up.
TEST(a_message_that_is_given_up_before_it_is_accepted_is_an_error) {
  for (const int64_t count : {4'000, 1 << 20}) {
    std::promise<void> given_up;
    std::atomic<bool> ended{false};
    together(2, [&](shm::Engine& engine, int rank) {
      auto data = values(rank, count);
      const auto message = call_of(rank == 0 ? Op::send : Op::recv, nullptr, &data, 1 - rank);
      if (rank == 0) {
        start(engine, message);
        given_up.set_value();
        while (!ended) engine.progress();
        return;
      }
      given_up.get_future().wait();
      const auto failure = failure_in_time(engine, message);
      CHECK(failure.code == ErrorCode::Backend);
      CHECK(check::has(failure.text, "rank 0 of the group has given up a message"));
      CHECK(data == values(1, count));
      ended = true;
    });
  }
}

// A thread sees interrupts and its timeout between two turns.
TEST(a_turn_copies_a_bounded_number_of_bytes) {
  constexpr int64_t kCount = 20 << 20;  // elements: 80 MiB
  const int64_t least = (int64_t{sizeof(int32_t)} * kCount - shm::Burst::kFirst) / shm::Burst().left;
  for (const auto op : {Op::send, Op::broadcast}) {
    std::atomic<bool> ended{false};
    together(2, [&](shm::Engine& engine, int rank) {
      auto data = values(0, kCount);
      auto call = call_of(op == Op::send && rank == 1 ? Op::recv : op, nullptr, &data, op == Op::send ? 1 - rank : 0);
      if (rank == 0) {
        run(engine, call);
        ended = true;
        return;
      }
      std::ranges::fill(data, 0);
      const auto requests = start(engine, call);
      int64_t turns = 1;
      while (!requests.front()->poll()) ++turns;
      CHECK(turns >= least);
      CHECK(data == values(0, kCount));
    });
  }
}

TEST(calls_of_other_roots_and_sizes_have_other_digests) {
  Numbers smaller(32 << 10), larger(48 << 10);
  const auto first = call_of(Op::broadcast, nullptr, &smaller, 1);
  const auto second = call_of(Op::broadcast, nullptr, &larger, 0);
  CHECK(shm::Blocks(first, 0, 2).digest() != shm::Blocks(second, 0, 2).digest());
}

namespace {

/// Copies of the process's sockets, as a forked process has them.
std::vector<File> copies_of_sockets() {
  std::vector<int> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::stoi(entry.path().filename().string());
    struct stat about{};
    if (fstat(number, &about) == 0 && S_ISSOCK(about.st_mode)) sockets.push_back(number);
  }
  std::vector<File> copies;
  for (const int number : sockets) copies.emplace_back(dup(number));
  return copies;
}

/// Rank 0 leaves the group with incomplete calls; the program may keep one of them, after an error.
void rank_0_leaves_early(bool keeps) {
  std::promise<void> left, noticed;
  std::vector<File> copies;
  MemoryStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto spec = ranks::spec(2, rank);
      spec.store = &store;
      auto engine = std::make_shared<shm::Engine>(spec, shm::meet(spec, [] { return int64_t{64} << 20; }));
      auto data = values(rank, 1 << 20);
      const auto call = call_of(Op::all_reduce, nullptr, &data);
      if (rank == 0) {
        auto requests = start(*engine, call), kept = start(*engine, call);
        if (keeps) requests.clear();  // which is an error
        engine->leave();
        requests.clear();
        if (!keeps) kept.clear();
        copies = copies_of_sockets();
        engine.reset();
        left.set_value();
        noticed.get_future().wait();
        return;
      }
      left.get_future().wait();
      const auto failure = failure_in_time(*engine, call);
      CHECK(failure.code == ErrorCode::Backend);
      CHECK(check::has(failure.text, "rank 0 of group 'default' has left it"));
      engine->leave();
      noticed.set_value();
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace

TEST(a_rank_that_leaves_before_the_end_of_its_call_ends_the_calls_of_the_others) {
  for (const bool keeps : {false, true}) rank_0_leaves_early(keeps);
}

// The peer completes a call only after this rank has left: with its last progress, the rank has left without an error.
TEST(a_rank_whose_calls_complete_after_it_has_left_has_not_died) {
  std::promise<void> left, done;
  together(2, [&](shm::Engine& engine, int rank) {
    auto data = values(rank, 1 << 20);
    const auto call = call_of(Op::all_reduce, nullptr, &data);
    if (rank == 0) {
      auto requests = start(engine, call);
      engine.leave();
      CHECK(shared->bell(0).left.load() != shm::Bell::kClean);
      left.set_value();
      wait(std::move(requests));
      CHECK(shared->bell(0).left.load() == shm::Bell::kClean);
      done.get_future().wait();
    } else {
      left.get_future().wait();
      run(engine, call);
      done.set_value();
    }
    CHECK(data == sums(2, 1 << 20));
  });
}

namespace {

/// The store of rank 0, which goes on from the step "accepted" only when rank 1 has failed in the next one.
class LateStore final : public OwnStore {
 public:
  using OwnStore::OwnStore;
  void set(const std::string& key, const std::string& value) override {
    OwnStore::set(key, value);
    if (key == "accepted") get("mapped/1");
  }
};

}  // namespace

TEST(a_problem_with_the_memory_of_one_rank_is_an_error_of_all) {
  MemoryStore store;
  LateStore late(store);
  const std::function<void()> stop = [] { throw Error(ErrorCode::Backend, "a problem"); };
  SharedHeap::instance();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto spec = ranks::spec(3, rank);
      spec.store = rank == 0 ? static_cast<Store*>(&late) : &store;
      spec.timeout = 5s;
      if (rank == 1) spec.check = &stop;  // ends its first wait for another rank: for the memory of rank 0
      const auto failure = ranks::failure([&] { shm::meet(spec, [] { return int64_t{64} << 20; }); });
      CHECK(failure.code == ErrorCode::Backend);
      CHECK(failure.text == "a problem (rank 1 of the group)");
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(store.size() == 1);  // the last key of rank 0, which other ranks may still read
}
