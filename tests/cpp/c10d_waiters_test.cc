// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "backends/c10d/waiters.h"
#include "check.h"

using mcr::Waiters;

namespace {

std::atomic<bool> grants{true};
std::atomic<int> started{0};

void start(std::function<void()> serve) {
  if (!grants) throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  ++started;
  std::thread(std::move(serve)).detach();
}

// Waits for what other threads do, at most a minute.
bool comes(const std::function<bool()>& event) {
  for (int i = 0; i < 60'000 && !event(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return event();
}

}  // namespace

TEST(every_job_gets_a_thread) {
  started = 0;
  const auto waiters = std::make_shared<Waiters>(start);
  std::atomic<bool> open{false};
  std::atomic<int> begun{0}, ended{0};
  const auto job = [&] {
    ++begun;
    while (!open) std::this_thread::yield();
    ++ended;
  };
  for (int i = 0; i < 3; ++i) CHECK(waiters->run(job));
  CHECK(comes([&] { return begun == 3; }) && started == 3);
  open = true;
  CHECK(comes([&] { return ended == 3; }));
  waiters->stop();
}

TEST(a_job_without_a_thread_is_not_kept) {
  started = 0;
  const auto waiters = std::make_shared<Waiters>(start);
  std::atomic<int> first{0}, second{0};
  grants = false;
  CHECK(!waiters->run([&] { ++first; }));
  grants = true;
  CHECK(waiters->run([&] { ++second; }) && comes([&] { return second == 1; }));
  waiters->stop();
  CHECK(first == 0 && started == 1);
}
