// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/waiting.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace mcr::shm {

namespace {

using std::chrono::nanoseconds;

// A rank writes counters and reads the number of sleepers; a sleeper has the reverse order, with a fence between both
// steps. If the writer has a fence too, at least one of the two sees the other. A fence waits until the writes have
// left the core, which small calls would notice; so where the system has membarrier, the sleeper makes the fences of
// all.
void full_fence(std::atomic<uint32_t>& word) {
#if defined(__SANITIZE_THREAD__)
  word.fetch_add(0, std::memory_order_seq_cst);  // ThreadSanitizer does not know fences
#else
  static_cast<void>(word);
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// With a core for each rank, waiting threads poll about as long as it takes to wake a thread. Otherwise the polled rank
// may need this core.
constexpr int kPolls = 400;
constexpr int kPollsOnSharedCores = 20;
constexpr nanoseconds kPatience{50'000};

}  // namespace

Waiting::Waiting(Segment& segment, int rank, int cores, bool remote_fences)
    : segment_(segment),
      rank_(rank),
      size_(segment.layout().ranks()),
      remote_fences_(remote_fences),
      shares_cores_(cores < size_),
      polls_(shares_cores_ ? kPollsOnSharedCores : kPolls),
      patience_(shares_cores_ ? nanoseconds(0) : kPatience) {}

bool Waiting::register_for_fences() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

void Waiting::fence() { full_fence(segment_.sleepers()); }

void Waiting::wake_sleepers() {
  for (int peer = 0; peer < size_; ++peer) {
    auto& bell = segment_.bell(peer);
    if (peer == rank_ || bell.sleepers.load(std::memory_order_relaxed) == 0) continue;
    bell.rings.fetch_add(1, std::memory_order_release);
    syscall(SYS_futex, &bell.rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

void Waiting::wake_own() {
  auto& bell = segment_.bell(rank_);
  bell.rings.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &bell.rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

uint32_t Waiting::announce() {
  auto& bell = segment_.bell(rank_);
  const auto rings = bell.rings.load(std::memory_order_acquire);
  bell.sleepers.fetch_add(1, std::memory_order_relaxed);
  segment_.sleepers().fetch_add(1, std::memory_order_relaxed);
  full_fence(segment_.sleepers());
  if (remote_fences_) syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
  return rings;
}

void Waiting::withdraw() {
  segment_.sleepers().fetch_sub(1, std::memory_order_relaxed);
  segment_.bell(rank_).sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void Waiting::sleep(nanoseconds limit, uint32_t rings) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time{seconds.count(), (limit - seconds).count()};
  syscall(SYS_futex, &segment_.bell(rank_).rings, FUTEX_WAIT, rings, &time, nullptr, 0);
}

}  // namespace mcr::shm
