// SPDX-License-Identifier: Apache-2.0
// How fast data moves from one core to another: written through the caches, or past them. Compiled and run by
// written_pieces.py; prints one line for each round: GB/s by way and by the memory that the writer goes through.
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "backends/shm/copies.h"

namespace {

using namespace mcr::shm;
using Clock = std::chrono::steady_clock;

constexpr int64_t kPiece = 64 << 10;
constexpr int kAhead = 4;  // pieces that the writer may be ahead of the reader

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

// Both ends copy `pieces` pieces: from memory of the writer, through `slots` slots, to memory of the reader.
double rate(const std::vector<int>& cores, bool streams, int slots, int pieces) {
  std::vector<std::byte> through(static_cast<std::size_t>(slots * kPiece));
  std::atomic<int> written{0}, read{0};
  const auto at = [&](int piece) { return through.data() + piece % slots * kPiece; };
  std::thread reader([&] {
    pin(cores[1]);
    std::vector<std::byte> to(4 * kPiece);
    for (int piece = 0; piece < pieces; ++piece) {
      while (written.load(std::memory_order_acquire) <= piece) {
      }
      copy_bytes(to.data() + piece % 4 * kPiece, at(piece), kPiece);
      read.store(piece + 1, std::memory_order_release);
    }
  });
  pin(cores[0]);
  const std::vector<std::byte> from(4 * kPiece, std::byte{1});
  const auto begin = Clock::now();
  for (int piece = 0; piece < pieces; ++piece) {
    while (piece - read.load(std::memory_order_acquire) >= kAhead) {
    }
    const auto* const data = from.data() + piece % 4 * kPiece;
    streams ? stream_bytes(at(piece), data, kPiece) : copy_bytes(at(piece), data, kPiece);
    written.store(piece + 1, std::memory_order_release);
  }
  reader.join();
  return static_cast<double>(pieces) * kPiece / std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) return 2;
  const std::vector<int> cores = {std::atoi(arguments[1]), std::atoi(arguments[2])};
  const int rounds = std::atoi(arguments[3]), pieces = std::atoi(arguments[4]);
  for (int round = 0; round < rounds; ++round) {
    for (const bool streams : {false, true}) {
      for (const int slots : {4, 32}) std::printf("%.2f ", rate(cores, streams, slots, pieces));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}
