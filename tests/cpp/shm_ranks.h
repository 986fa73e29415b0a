// SPDX-License-Identifier: Apache-2.0
// Ranks of the backend `shm` as threads of one process, which share one mapping: ThreadSanitizer sees all that the
// ranks do to the shared memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backends/shm/engine.h"
#include "base/shared_heap.h"
#include "check.h"
#include "ranks.h"

namespace shm_ranks {

using namespace mcr;
using namespace std::chrono_literals;

/// Whether this thread's numbers lie in the heap that other ranks map.
inline thread_local bool in_heap = false;

template <class T>
struct Allocator {
  using value_type = T;
  Allocator() = default;
  template <class Other>
  Allocator(const Allocator<Other>&) {}

  T* allocate(std::size_t count) {
    const auto bytes = static_cast<int64_t>(count * sizeof(T));
    if (in_heap) return reinterpret_cast<T*>(SharedHeap::instance().allocate(bytes));
    return static_cast<T*>(::operator new(count * sizeof(T)));
  }
  void deallocate(T* data, std::size_t) {
    auto* const memory = reinterpret_cast<std::byte*>(data);
    if (SharedHeap::instance().contains(memory, 0)) return SharedHeap::instance().free(memory);
    ::operator delete(data);
  }
  bool operator==(const Allocator&) const = default;
};

using Numbers = std::vector<int32_t, Allocator<int32_t>>;

class MemoryStore : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key) override {
    std::unique_lock lock(mutex_);
    ++reads_;
    if (!changed_.wait_for(lock, 60s, [&] { return values_.contains(key); })) {
      throw Error(ErrorCode::Timeout, "store: " + key);
    }
    return values_[key];
  }
  void erase(const std::string& key) noexcept override {
    const std::lock_guard lock(mutex_);
    values_.erase(key);
  }
  int reads() const { return reads_; }
  int size() const { return static_cast<int>(values_.size()); }

 private:
  int reads_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// One rank's view of the store, for tests that change what this rank does there.
class OwnStore : public Store {
 public:
  explicit OwnStore(MemoryStore& store) : store_(store) {}
  void set(const std::string& key, const std::string& value) override { store_.set(key, value); }
  std::string get(const std::string& key) override { return store_.get(key); }
  void erase(const std::string& key) noexcept override { store_.erase(key); }

 private:
  MemoryStore& store_;
};

using Body = std::function<void(shm::Engine&, int rank)>;

inline thread_local shm::Segment* shared = nullptr;  // the memory of the rank that runs in this thread

/// The use of a store in which ranks have met.
struct Traffic {
  int reads, left;  // values
};

/// Runs `body` on `size` threads, each with the engine of one rank, in memory of at most `most` bytes.
inline Traffic together(int size, const Body& body, int64_t most = 64 << 20) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto spec = ranks::spec(size, rank);
      spec.store = &store;
      try {
        auto meeting = shm::meet(spec, [most] { return most; });
        // All machines run both kinds of copies, of fences and of reads, which depend on the processor and the system.
        meeting.streams = size % 2 == 0;
        meeting.remote_fences = meeting.remote_fences && size != 3;
        if (size == 3) meeting.processes.clear();
        shared = meeting.segment.get();
        const auto engine = std::make_shared<shm::Engine>(spec, std::move(meeting));
        body(*engine, rank);
        engine->leave();
      } catch (const Error& error) {
        check::failed("rank", rank, error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return {store.reads(), store.size()};
}

inline void wait(Requests requests) {
  for (const auto& request : requests) {
    while (!request->poll()) request->block(100ms);
  }
}

inline void begin(shm::Engine& engine, const Call& call, Lane& lane) {
  if (row(call.op).is(kPeer)) {
    engine.message(call, lane);
  } else if (call.vectored && (call.op == Op::all_to_all || call.op == Op::gather || call.op == Op::scatter)) {
    engine.exchange(call, lane);
  } else {
    engine.collective(call, lane);
  }
}

/// The operation as a blocking call, or as one that is started.
inline void run(shm::Engine& engine, const Call& call, bool blocking = true) {
  Lane lane(blocking);
  begin(engine, call, lane);
  wait(lane.take());
}

inline Call call_of(Op op, Numbers* in, Numbers* out, int root = 0) {
  Call call;
  call.op = op;
  call.dtype = DType::Int;
  call.root = root;
  if (in != nullptr) call.in = ranks::buffer(*in);
  if (out != nullptr) call.out = ranks::buffer(*out);
  return call;
}

inline int32_t value(int rank, int64_t index) { return static_cast<int32_t>(rank * 100'003 + index * 7 + 1); }

inline Numbers values(int rank, int64_t count, int64_t from = 0) {
  Numbers made(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) made[static_cast<std::size_t>(i)] = value(rank, from + i);
  return made;
}

inline Numbers sums(int size, int64_t count, int64_t from = 0) {
  auto sum = values(0, count, from);
  for (int rank = 1; rank < size; ++rank) {
    const auto more = values(rank, count, from);
    std::ranges::transform(sum, more, sum.begin(), std::plus<>());
  }
  return sum;
}

// Around the bounds of slots and pieces.
inline const std::vector<int64_t> kCounts = {1, 13, 14, 15, 1023, 1024, 1025, 5'000, 16'384, 16'385, 70'001};

inline void every_collective(shm::Engine& engine, int rank, int size, int64_t count, bool blocking) {
  const int root = static_cast<int>(count) % size;
  auto data = values(rank, count);
  run(engine, call_of(Op::all_reduce, nullptr, &data), blocking);
  CHECK(data == sums(size, count));
  data = values(rank, count);
  run(engine, call_of(Op::reduce, nullptr, &data, root), blocking);
  CHECK(data == (rank == root ? sums(size, count) : values(rank, count)));
  data = values(rank, count);
  run(engine, call_of(Op::broadcast, nullptr, &data, root), blocking);
  CHECK(data == values(root, count));

  auto whole = values(rank, count * size);
  Numbers block(static_cast<std::size_t>(count));
  run(engine, call_of(Op::reduce_scatter, &whole, &block), blocking);
  CHECK(block == sums(size, count, rank * count));
  Numbers exchanged(whole.size());
  run(engine, call_of(Op::all_to_all, &whole, &exchanged), blocking);
  std::ranges::fill(block, 0);
  run(engine, call_of(Op::scatter, rank == root ? &whole : nullptr, &block, root), blocking);
  CHECK(block == values(root, count, rank * count));

  block = values(rank, count);
  Numbers gathered(whole.size());
  run(engine, call_of(Op::all_gather, &block, &gathered), blocking);
  Numbers at_root(rank == root ? whole.size() : 0);
  run(engine, call_of(Op::gather, &block, &at_root, root), blocking);
  for (int peer = 0; peer < size; ++peer) {
    const auto theirs = values(peer, count);
    const auto sent = values(peer, count, rank * count);
    CHECK(std::equal(theirs.begin(), theirs.end(), gathered.begin() + peer * count));
    CHECK(std::equal(sent.begin(), sent.end(), exchanged.begin() + peer * count));
    CHECK(rank != root || std::equal(theirs.begin(), theirs.end(), at_root.begin() + peer * count));
  }
  run(engine, call_of(Op::barrier, nullptr, nullptr), blocking);
}

/// Rank 0 destroys the request of a large call, all_gather or all_reduce: rank 1 gets an error.
inline void rank_0_gives_up(Op op, bool shared) {
  std::atomic<bool> given_up{false};
  together(2, [&](shm::Engine& engine, int rank) {
    in_heap = shared;
    auto block = values(rank, 1 << 20);
    Numbers out(block.size() * 2);
    const auto call = op == Op::all_reduce ? call_of(op, nullptr, &block) : call_of(op, &block, &out);
    if (rank == 0) {
      Lane lane(false);
      engine.collective(call, lane);
      CHECK(lane.pending());
      lane.take().clear();  // destroys the request
      given_up = true;
      return;
    }
    while (!given_up) std::this_thread::yield();
    const auto failure = ranks::failure([&] { run(engine, call); });
    CHECK(failure.code == ErrorCode::Backend && check::has(failure.text, "rank 0 of the group has given up this call"));
  });
}

}  // namespace shm_ranks
