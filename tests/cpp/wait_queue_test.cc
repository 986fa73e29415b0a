// SPDX-License-Identifier: Apache-2.0
#include "base/wait_queue.h"

#include <thread>

#include "check.h"

namespace {

using namespace mcr;
using namespace std::chrono_literals;

// Threads that take numbers; all of them wait on one queue.
struct Takers {
  explicit Takers(int count) {
    for (int i = 0; i < count; ++i) threads.emplace_back([this] { serve(); });
  }
  ~Takers() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
      wake.notify_all();
    }
    for (auto& thread : threads) thread.join();
  }
  void serve() {
    std::unique_lock lock(mutex);
    for (;;) {
      ++idle;
      wake.wait(lock, [this] { return left != 0 || stopping; });
      --idle;
      if (left == 0) return;
      --left;
      ++taken;
      done.notify_all();
    }
  }

  std::mutex mutex;
  WaitQueue wake, done;
  int left = 0, taken = 0, idle = 0;
  bool stopping = false;
  std::vector<std::thread> threads;
};

}  // namespace

TEST(each_notification_reaches_a_thread_that_waits) {
  Takers takers(4);
  int expected = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::unique_lock lock(takers.mutex);
    for (int i = 0; i <= round % 3; ++i, ++expected) {
      ++takers.left;
      takers.wake.notify_one();
    }
    CHECK(takers.done.wait_for(lock, 30s, [&] { return takers.taken == expected; }));
  }
}

TEST(a_wait_ends_with_its_limit_and_is_forgotten) {
  std::mutex mutex;
  WaitQueue queue;
  std::unique_lock lock(mutex);
  CHECK(!queue.wait_for(lock, 1ms, [] { return false; }));
  queue.notify_one();  // no thread waits
  CHECK(queue.wait_for(lock, 1ms, [] { return true; }));
  queue.wait(lock, [] { return true; });
}

TEST(notify_all_wakes_all) {
  Takers takers(5);
  for (bool all = false; !all; std::this_thread::yield()) {
    const std::lock_guard lock(takers.mutex);
    all = takers.idle == 5;
  }
  std::unique_lock lock(takers.mutex);
  takers.left = 5;
  takers.wake.notify_all();
  CHECK(takers.done.wait_for(lock, 30s, [&] { return takers.taken == 5; }));
}
