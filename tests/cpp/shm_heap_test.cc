// SPDX-License-Identifier: Apache-2.0
// Tensors in the heap that the processes of a host map.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <limits>

#include "shm_ranks.h"

using namespace shm_ranks;

namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = 2 << 20;

}  // namespace

TEST(a_heap_reuses_and_joins_what_is_freed) {
  SharedHeap heap(8 * kPage);
  auto* const first = heap.allocate(1);
  auto* const second = heap.allocate(2 * kPage);
  CHECK(second - first == kPage && heap.contains(first, kPage));
  CHECK(!heap.contains(heap.begin() + 8 * kPage, 1) && !heap.contains(heap.begin() + 7 * kPage, kPage + 1));
  second[0] = std::byte{1};
  auto* const rest = heap.allocate(5 * kPage);
  for (const auto most : {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max() - kPage})
    CHECK(check::has(ranks::failure([&] { heap.allocate(most); }).text, "expected space"));
  const auto full = ranks::failure([&] { heap.allocate(1); });
  CHECK(full.code == ErrorCode::Backend && check::has(full.text, "MCR_DL_SHM_TENSOR_BYTES"));
  heap.free(second);
  heap.free(first);
  heap.free(rest);
  auto* const whole = heap.allocate(8 * kPage);
  CHECK(whole == first && whole[kPage] == std::byte{0});  // freed pages have gone back to the system
  heap.free(whole + kPage);                               // no block begins there: nothing happens
  CHECK(ranks::failure([&] { heap.allocate(1); }).code == ErrorCode::Backend);
}

TEST(large_blocks_begin_with_huge_pages) {
  SharedHeap heap(3 * kHugePage);
  auto* const small = heap.allocate(1);
  auto* const large = heap.allocate(kHugePage);
  CHECK(large - heap.begin() == kHugePage && small == heap.begin());
  CHECK(heap.allocate(1) == small + kPage);
}

TEST(a_forked_process_neither_allocates_nor_frees) {
  SharedHeap heap(2 * kPage);
  auto* const memory = heap.allocate(1);
  memory[0] = std::byte{7};
  const pid_t child = fork();
  if (child == 0) {
    heap.free(memory);
    const auto failure = ranks::failure([&] { heap.allocate(1); });
    _exit(check::has(failure.text, "forked") ? 0 : 1);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(memory[0] == std::byte{7});
}

TEST(collectives_of_shared_tensors) {
  for (const int size : {2, 3, 4, 5}) {
    together(size, [size](shm::Engine& engine, int rank) {
      in_heap = true;
      for (const auto count : kCounts) every_collective(engine, rank, size, count, count % 2 == 0);
    });
  }
}

TEST(ranks_with_and_without_shared_tensors) {
  for (const int size : {2, 3, 4}) {
    together(size, [size](shm::Engine& engine, int rank) {
      for (int call = 0; call < 8; ++call) {
        in_heap = (rank + call) % 2 == 0;
        every_collective(engine, rank, size, 40'000 + 999 * call, call % 3 == 0);
      }
    });
  }
}

TEST(started_collectives_of_shared_tensors) {
  constexpr int kCalls = 12;
  constexpr int64_t kCount = 30'000;
  together(3, [](shm::Engine& engine, int rank) {
    std::vector<Numbers> data;
    for (int call = 0; call < kCalls; ++call) {
      in_heap = (rank + call) % 3 != 0;
      data.push_back(values(rank, kCount, call));
    }
    Requests requests;
    for (auto& each : data) {
      Lane lane(false);
      engine.collective(call_of(Op::all_reduce, nullptr, &each), lane);
      for (auto& request : lane.take()) requests.push_back(std::move(request));
    }
    wait(std::move(requests));
    for (int call = 0; call < kCalls; ++call) {
      CHECK(data[static_cast<std::size_t>(call)] == sums(3, kCount, call));
    }
  });
}

TEST(messages_of_shared_tensors) {
  for (const int size : {2, 3}) {  // without and with reads by system calls
    together(size, [size](shm::Engine& engine, int rank) {
      in_heap = true;
      auto sent = values(rank, 100'000);
      Numbers received(sent.size());
      Lane lane(false);
      auto send = call_of(Op::send, nullptr, &sent, (rank + 1) % size);
      engine.message(send, lane);
      run(engine, call_of(Op::recv, nullptr, &received, (rank + size - 1) % size));
      wait(lane.take());
      CHECK(received == values((rank + size - 1) % size, 100'000));
    });
  }
}

TEST(a_call_with_shared_tensors_that_is_given_up_raises_an_error) { rank_0_gives_up(Op::all_reduce, true); }
