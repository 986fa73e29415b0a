// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <numeric>

#include "shm_ranks.h"

using namespace shm_ranks;

TEST(collectives) {
  for (const int size : {1, 2, 3, 4, 8}) {
    together(size, [&](shm::Engine& engine, int rank) {
      for (const auto count : kCounts) every_collective(engine, rank, size, count, count % 2 == 0);
    });
  }
}

TEST(streamed_copies) {
  std::vector<std::byte> from(1000), to(1000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i % 251);
  for (const int64_t begin : {0, 1, 15, 63}) {
    for (const int64_t bytes : {0, 1, 127, 128, 129, 191, 200, 640, 900}) {
      std::ranges::fill(to, std::byte{255});
      shm::stream_bytes(to.data() + begin, from.data() + begin / 2, bytes);
      CHECK(std::equal(to.begin() + begin, to.begin() + begin + bytes, from.begin() + begin / 2));
      CHECK(std::count(to.begin(), to.end(), std::byte{255}) == std::ssize(to) - bytes);
    }
  }
}

// The readers' times are set here; a rank's own times of writing are real, and far from these.
TEST(pieces_are_written_in_the_way_that_the_slowest_reader_reads_fastest) {
  const shm::Layout layout({.ranks = 3, .most = 64 << 20, .streams = true});
  const auto file = Memory::make(layout.bytes(), "MCR_DL_SHM_BYTES");
  shm::Segment segment(layout, Memory::map(file, layout.bytes(), "MCR_DL_SHM_BYTES"));
  shm::Writing writing(segment, 0, true);
  const std::vector<std::byte> data(layout.piece());
  uint64_t number = 0;
  const auto streamed = [&](int pieces) {
    int found = 0;
    for (int i = 0; i < pieces; ++i, ++number) {
      writing.begin(shm::Writing::kCopied, layout.piece());
      writing.write(segment.piece(0, number), data.data(), layout.piece());
      writing.end(shm::Writing::kCopied, number);
      found += static_cast<int>(segment.counts(0).ways.load() >> layout.piece_slot(number) & 1);
    }
    return found;
  };
  const auto times = [&](int rank, uint32_t cached, uint32_t past_the_caches) {
    segment.counts(rank).reads[shm::Writing::kCopied][0] = cached;
    segment.counts(rank).reads[shm::Writing::kCopied][1] = past_the_caches;
  };
  constexpr int kPieces = 512;
  CHECK(streamed(kPieces) > kPieces * 9 / 10);  // as long as no times are known
  constexpr uint32_t kFast = 1, kSlow = 1 << 30;
  times(1, kFast, kSlow);
  times(2, kFast, kSlow);
  CHECK(streamed(kPieces) < kPieces / 10);
  times(2, kSlow, kSlow / 2);
  times(1, kFast, kFast);
  CHECK(streamed(kPieces) > kPieces * 9 / 10);
  CHECK(streamed(kPieces) < kPieces);  // the other way is tried now and then
}

// The calls of two ranks, of which the first one measures scripted times.
TEST(large_exchanges_are_made_in_the_way_that_copies_fastest) {
  using Way = shm::Writing::Way;
  constexpr int64_t kCount = 1 << 18;
  Numbers in(kCount), out(2 * kCount);
  const auto call = call_of(Op::all_gather, &in, &out);
  const shm::Blocks blocks(call, 0, 2);
  const shm::Layout layout({.ranks = 2, .most = 64 << 20, .streams = true});
  const auto file = Memory::make(layout.bytes(), "MCR_DL_SHM_BYTES");
  shm::Segment segment(layout, Memory::map(file, layout.bytes(), "MCR_DL_SHM_BYTES"));
  std::map<Way, std::chrono::microseconds> times = {{Way::kCached, 30us}, {Way::kStreamed, 20us}, {Way::kDirect, 10us}};
  shm::Exchanging first(segment, 0, true, true), second(segment, 1, true, true);
  // In the last of so many calls. Rank 1 begins a call before rank 0 has ended the one before, or after it.
  const auto most_used = [&](int calls, bool counts = true) {
    constexpr int kLast = 200;
    std::map<Way, int> used;
    for (int i = 0; i < calls; ++i) {
      const bool early = i % 3 == 0;
      auto theirs = early ? second.begin(blocks).value() : Way::kUnknown;
      if (i > 0) {
        if (!counts) first.discard();
        first.end();
      }
      const auto way = first.begin(blocks).value();
      first.add(times.at(way));
      if (!early) theirs = second.begin(blocks).value();
      CHECK(way == theirs);
      if (i >= calls - kLast) ++used[way];
    }
    first.end();
    const auto most = std::ranges::max_element(used, {}, [](const auto& one) { return one.second; });
    CHECK(most->second > kLast * 9 / 10);
    return most->first;
  };
  CHECK(most_used(1000) == Way::kDirect);
  times[Way::kCached] = 5us;
  CHECK(most_used(2000, false) == Way::kDirect);
  CHECK(most_used(2000) == Way::kCached);
  times[Way::kCached] = 90us;
  CHECK(most_used(1000) == Way::kDirect);
  times[Way::kDirect] = 95us;
  CHECK(most_used(1000) == Way::kStreamed);
  CHECK(!shm::Exchanging(segment, 0, false, false).begin(blocks));
}

TEST(large_blocks_are_read_directly_or_in_pieces) {
  constexpr int64_t kCount = 1 << 20;  // several chunks
  together(2, [&](shm::Engine& engine, int rank) {
    for (const bool blocking : {true, false}) every_collective(engine, rank, 2, kCount, blocking);
    // Counts per rank, one of them zero, and more calls in flight than there are slots.
    constexpr int kCalls = 10;
    std::vector<Numbers> gathered(kCalls, Numbers(kCount));
    auto block = values(rank, rank == 0 ? 0 : kCount);
    const std::vector<int64_t> counts = {0, kCount}, displs = {0, 0};
    Requests requests;
    for (auto& out : gathered) {
      auto call = call_of(Op::all_gather, &block, &out);
      call.vectored = true;
      call.out_counts = counts;
      call.out_displs = displs;
      Lane lane(false);
      engine.collective(call, lane);
      for (auto& request : lane.take()) requests.push_back(std::move(request));
    }
    wait(std::move(requests));
    for (const auto& out : gathered) CHECK(out == values(1, kCount));
  });
}

// So many calls that each way is tried.
TEST(large_exchanges_give_the_same_result_in_each_way) {
  for (const int size : {2, 4, 5}) {  // 5: without streaming
    together(size, [&](shm::Engine& engine, int rank) {
      for (int call = 0; call < 32; ++call) every_collective(engine, rank, size, 1 << 16, call % 2 == 0);
    });
  }
}

TEST(a_call_that_is_given_up_is_not_read) { rank_0_gives_up(Op::all_gather, false); }

TEST(ranks_that_have_made_different_calls_raise_errors) {
  struct Pair {
    Op first, second;
    int64_t count, other;  // elements
    bool shared;
  };
  for (const auto& [first, second, count, other, shared] : std::vector<Pair>{
           {Op::all_reduce, Op::all_reduce, 10, 9, false},
           {Op::all_reduce, Op::barrier, 10, 0, false},
           {Op::all_to_all, Op::all_gather, 64, 64, false},
           {Op::all_reduce, Op::all_reduce, 10'000, 9'000, false},
           {Op::all_reduce, Op::all_reduce, 10'000, 9'000, true},
           {Op::all_to_all, Op::all_to_all, 1 << 17, 1 << 16, false},
       }) {
    const auto body = [&](shm::Engine& engine, int rank) {
      in_heap = shared;
      const auto op = rank == 0 ? first : second;
      const auto length = rank == 0 ? count : other;
      auto block = values(rank, length), whole = values(rank, 2 * length);
      const bool same = row(op).extent == Extent::Same;
      auto call = op == Op::barrier      ? call_of(op, nullptr, nullptr)
                  : same                 ? call_of(op, nullptr, &block)
                  : op == Op::all_gather ? call_of(op, &block, &whole)
                                         : call_of(op, &whole, &whole);
      Numbers out(whole.size());
      if (op == Op::all_to_all) call.out = ranks::buffer(out);
      const auto failure = ranks::failure([&] { run(engine, call); });
      CHECK(failure.code == ErrorCode::Backend && check::has(failure.text, "the ranks have made different calls"));
    };
    // Several times: a rank may see the other's call at its first look, or later.
    for (int time = 0; time < 8; ++time) together(2, body);
  }
}

TEST(memory_that_is_not_there_is_not_read) {
  std::array<std::byte, 8> to{};
  const auto failure = ranks::failure([&] { shm::read_memory(getpid(), nullptr, to.data(), 8); });
  CHECK(failure.code == ErrorCode::Backend && check::has(failure.text, "cannot be read"));
  CHECK(!shm::read_memory(1 << 22, to.data(), to.data(), 8));  // above the largest process number
}

TEST(ranks_read_little_in_the_store_to_meet_and_leave_less) {
  constexpr int kRanks = 8, kSteps = 7;
  const auto traffic = together(kRanks, [](shm::Engine&, int) {});
  CHECK(traffic.reads > 0 && traffic.reads <= kSteps * 2 * kRanks);  // not the square of the number of ranks
  CHECK(traffic.left == 1);
}

TEST(collectives_in_little_memory) {
  const shm::Layout least({.ranks = 3, .most = 1 << 20, .streams = true, .shares_cores = true});
  CHECK(least.bytes() <= 1 << 20);
  together(3, [&](shm::Engine& engine, int rank) { every_collective(engine, rank, 3, 70'001, true); }, 300'000);
  const auto refused = ranks::failure([] { shm::Layout({.ranks = 4, .most = 1000}); });
  CHECK(refused.code == ErrorCode::InvalidArgument);
  CHECK(check::has(refused.text, "MCR_DL_SHM_BYTES", "4 ranks", "got 1000"));
}

TEST(the_least_memory_of_any_number_of_ranks_suffices_and_less_does_not) {
  for (const int ranks : {1, 2, 3, 64, 65, 117, 118, 500}) {
    const auto least = shm::Layout::least(ranks);
    for (const bool many : {false, true}) {
      const auto layout = [&](int64_t most) {
        return shm::Layout({.ranks = ranks, .most = most, .streams = many, .shares_cores = many});
      };
      CHECK(layout(least).bytes() == least);
      const auto refused = ranks::failure([&] { layout(least - 1); });
      CHECK(refused.code == ErrorCode::InvalidArgument);
      CHECK(check::has(refused.text, "at least " + std::to_string(least)));
    }
  }
}

TEST(started_collectives_complete_in_order_whatever_is_waited_for) {
  constexpr int kCalls = 40;
  together(3, [&](shm::Engine& engine, int rank) {
    std::vector<Numbers> data;
    for (int i = 0; i < kCalls; ++i) data.push_back(values(rank, i % 5 == 0 ? 30'000 : i + 1));
    Requests requests;
    for (auto& one : data) {
      Lane lane(false);
      engine.collective(call_of(Op::all_reduce, nullptr, &one), lane);
      for (auto& request : lane.take()) requests.push_back(std::move(request));
    }
    std::ranges::reverse(requests);
    wait(std::move(requests));
    for (const auto& one : data) CHECK(one == sums(3, static_cast<int64_t>(one.size())));
  });
}

TEST(calls_in_place_of_the_own_block) {
  for (const int size : {2, 3}) {
    for (const int64_t count : {5, 3'000, 300'000}) {
      for (const bool heap : {false, true}) {
        together(size, [&](shm::Engine& engine, int rank) {
          in_heap = heap;
          auto whole = values(rank, size * count);
          in_heap = false;
          auto* const own = whole.data() + rank * count;
          auto call = call_of(Op::reduce_scatter, nullptr, nullptr);
          call.in = ranks::buffer(whole);
          call.out = {own, count};
          CHECK(engine.takes_in_place(call));
          run(engine, call);
          CHECK(std::equal(own, own + count, sums(size, count, rank * count).data()));
          call.op = Op::all_gather;
          std::swap(call.in, call.out);
          CHECK(engine.takes_in_place(call));
          run(engine, call);
          CHECK(whole == sums(size, size * count));
          call.in.data = whole.data() + (rank + 1) % size * count;
          CHECK(!engine.takes_in_place(call));
        });
      }
    }
  }
}

TEST(vectored_exchanges_with_gaps) {
  for (const int size : {2, 3, 4}) {
    together(size, [&](shm::Engine& engine, int rank) {
      const auto count = [](int from, int to) { return static_cast<int64_t>((from * 5 + to * 3) % 7) * 1'000; };
      std::vector<int64_t> in_counts, in_displs, out_counts, out_displs;
      int64_t ins = 1;
      int64_t outs = 2;
      for (int peer = 0; peer < size; ++peer) {
        in_counts.push_back(count(rank, peer));
        in_displs.push_back(ins);
        ins += in_counts.back() + 1;
        out_counts.push_back(count(peer, rank));
        out_displs.push_back(outs);
        outs += out_counts.back() + 3;
      }
      auto in = values(rank, ins);
      Numbers out(static_cast<std::size_t>(outs), -1);
      auto call = call_of(Op::all_to_all, &in, &out);
      call.vectored = true;
      call.in_counts = in_counts;
      call.in_displs = in_displs;
      call.out_counts = out_counts;
      call.out_displs = out_displs;
      run(engine, call, rank % 2 == 0);
      CHECK(out[0] == -1 && out.back() == -1);
      for (int peer = 0; peer < size; ++peer) {
        int64_t from = 1;
        for (int to = 0; to < rank; ++to) from += count(peer, to) + 1;
        const auto want = values(peer, count(peer, rank), from);
        CHECK(std::equal(want.begin(), want.end(), out.begin() + out_displs[static_cast<std::size_t>(peer)]));
      }
    });
  }
}

TEST(threads_of_a_rank_share_a_communicator) {
  together(2, [&](shm::Engine& engine, int rank) {
    auto data = values(rank, 40'000);
    std::thread other([&] {
      auto message = values(rank, 30'000);
      run(engine, call_of(rank == 0 ? Op::send : Op::recv, nullptr, &message, 1 - rank));
      CHECK(message == values(0, 30'000));
    });
    for (int i = 0; i < 20; ++i) {
      data = values(rank, 1 + i * 2'000);
      run(engine, call_of(Op::all_reduce, nullptr, &data), i % 2 == 0);
      CHECK(data == sums(2, 1 + i * 2'000));
    }
    other.join();
  });
}

TEST(a_rank_that_vanishes_ends_the_waits_of_the_others) {
  MemoryStore store;
  const auto connect = [&](int rank) {
    auto spec = ranks::spec(3, rank);
    spec.store = &store;
    return std::make_shared<shm::Engine>(spec, shm::meet(spec, [] { return int64_t{64} << 20; }));
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto engine = connect(rank);
      run(*engine, call_of(Op::barrier, nullptr, nullptr));
      if (rank == 1) return;  // without leave()
      const auto failure = ranks::failure([&] { run(*engine, call_of(Op::barrier, nullptr, nullptr)); });
      CHECK(failure.code == ErrorCode::Backend);
      CHECK(check::has(failure.text, "rank 1 of group 'default' has died"));
      engine->leave();
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(a_request_keeps_the_engine_only_while_it_runs) {
  together(2, [](shm::Engine& engine, int rank) {
    const auto owners = [&] { return engine.weak_from_this().use_count(); };
    const auto before = owners();
    for (const auto op : {Op::all_reduce, rank == 0 ? Op::send : Op::recv}) {
      auto data = values(rank, 1 << 20);
      Lane lane(false);
      begin(engine, call_of(op, nullptr, &data, op == Op::all_reduce ? 0 : 1 - rank), lane);
      const auto requests = lane.take();
      for (const auto& request : requests) {
        CHECK(owners() == before + 1);
        while (!request->poll()) request->block(100ms);
      }
      CHECK(owners() == before);
    }
  });
}

// The caller's lock would keep other threads waiting meanwhile.
TEST(polls_under_a_lock_move_no_data_of_large_calls) {
  constexpr int64_t kLarge = 1 << 20;
  std::promise<void> begun;
  together(2, [&](shm::Engine& engine, int rank) {
    auto large = values(rank, kLarge), small = values(rank, 9);
    const auto first = call_of(Op::all_reduce, nullptr, &large), second = call_of(Op::all_reduce, nullptr, &small);
    if (rank == 1) {
      begun.get_future().wait();
      run(engine, first);
      run(engine, second);
    } else {
      Lane lane(false);
      engine.collective(first, lane);
      engine.collective(second, lane);
      auto requests = lane.take();
      begun.set_value();
      while (shared->counts(1).copied_in.load() == 0) std::this_thread::yield();
      for (int poll = 0; poll < 100; ++poll) {
        const BriefPolls polls;
        CHECK(!requests.back()->poll());
      }
      CHECK(!BriefPolls::here() && shared->counts(0).combined.load() == 0);
      wait(std::move(requests));
    }
    CHECK(large == sums(2, kLarge) && small == sums(2, 9));
  });
}

TEST(a_thread_that_announced_its_sleep_asks_whether_another_one_has_completed_the_operation) {
  together(2, [&](shm::Engine& engine, int rank) {
    if (rank == 1) return;
    bool announced = false;
    engine.block(10s, [&] {
      announced = shared->sleepers().load() > 0;
      return announced;
    });
    CHECK(announced);
  });
}

TEST(a_thread_that_fails_before_its_sleep_is_no_sleeper) {
  together(1, [](shm::Engine&, int rank) {
    shm::Waiting waiting(*shared, rank, 1, false);
    const auto failure =
        ranks::failure([&] { waiting.sleep(0ms, []() -> bool { throw Error(ErrorCode::Backend, "out of memory"); }); });
    CHECK(failure.text == "out of memory");
    CHECK(shared->sleepers() == 0 && shared->bell(rank).sleepers == 0);
  });
}

TEST(an_abort_ends_waits) {
  together(2, [&](shm::Engine& engine, int rank) {
    if (rank == 1) return;
    std::thread other([&] {
      std::this_thread::sleep_for(20ms);
      engine.abort();
    });
    const auto failure = ranks::failure([&] { run(engine, call_of(Op::barrier, nullptr, nullptr)); });
    CHECK(check::has(failure.text, "aborted"));
    other.join();
  });
}

TEST(ranks_that_cannot_reach_each_other_raise_one_error) {
  MemoryStore store;
  std::array<std::string, 3> texts;
  std::atomic<bool> separate{true};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      // As in another container; only some users may make a network namespace.
      if (rank == 2 && unshare(CLONE_NEWNET) != 0) separate = false;
      auto spec = ranks::spec(3, rank);
      spec.store = &store;
      const auto failure = ranks::failure([&] { shm::meet(spec, [] { return int64_t{64} << 20; }); });
      texts[static_cast<std::size_t>(rank)] = failure.text;
    });
  }
  for (auto& thread : threads) thread.join();
  if (!separate) {
    std::puts("ranks of another network namespace: NOT CHECKED, since this user may make none");
    return;
  }
  CHECK(check::has(texts[0], "ranks 0, 1 on ", "rank 2 on ", "mpi or gloo"));
  CHECK(texts[1] == texts[0] && texts[2] == texts[0]);
}

TEST(a_problem_of_one_rank_is_an_error_of_all) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto spec = ranks::spec(3, rank);
      spec.store = &store;
      const auto failure = ranks::failure([&] {
        shm::meet(spec, [rank] {
          if (rank == 1) throw Error(ErrorCode::InvalidArgument, "a wrong number");
          return int64_t{64} << 20;
        });
      });
      CHECK(failure.code == ErrorCode::InvalidArgument);
      CHECK(failure.text == "a wrong number (rank 1 of the group)");
    });
  }
  for (auto& thread : threads) thread.join();
}
