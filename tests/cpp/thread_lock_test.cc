// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/thread_lock.h"

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"

namespace {

using mcr::mpi::ThreadLock;

}  // namespace

TEST(one_thread_at_a_time) {
  constexpr int kThreads = 4, kTurns = 20'000;
  ThreadLock mutex;
  int64_t count = 0;  // guarded by mutex
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        for (int turn = 0; turn < kTurns; ++turn) {
          const std::lock_guard lock(mutex);
          ++count;
        }
      });
    }
  }
  CHECK(count == int64_t{kThreads} * kTurns);
}

TEST(a_taken_lock_is_not_waited_for_by_try_lock) {
  ThreadLock mutex;
  std::unique_lock<ThreadLock> first(mutex);
  bool got = true;
  std::jthread([&] { got = mutex.try_lock(); }).join();
  CHECK(!got);
  first.unlock();
  CHECK(mutex.try_lock());
  mutex.unlock();
}

TEST(sleepers_get_the_lock_when_it_is_free) {
  ThreadLock mutex;
  std::unique_lock<ThreadLock> first(mutex);
  std::atomic<int> got{0};
  std::vector<std::jthread> sleepers;
  for (int i = 0; i < 3; ++i) {
    sleepers.emplace_back([&] {
      const std::lock_guard lock(mutex);
      ++got;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(got == 0);
  first.unlock();
  sleepers.clear();  // joins
  CHECK(got == 3);
}
