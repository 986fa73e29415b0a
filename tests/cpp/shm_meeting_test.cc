// SPDX-License-Identifier: Apache-2.0
// How the ranks of a host meet: over sockets that other processes may reach, too.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "backends/shm/sockets.h"
#include "shm_ranks.h"

using namespace shm_ranks;

namespace {

/// The store of a rank of another host, as its card says.
class OtherHost final : public OwnStore {
 public:
  using OwnStore::OwnStore;
  void set(const std::string& key, const std::string& value) override {
    const bool card = key.starts_with("card/");
    OwnStore::set(key, card ? std::string(value).insert(value.find('\n') + 1, "another ") : value);
  }
};

}  // namespace

TEST(ranks_of_several_hosts_leave_no_keys) {
  MemoryStore store;
  OtherHost other(store);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto spec = ranks::spec(3, rank);
      spec.store = rank == 1 ? static_cast<Store*>(&other) : &store;
      const auto failure = ranks::failure([&] { shm::meet(spec, [] { return int64_t{64} << 20; }); });
      CHECK(failure.code == ErrorCode::Unavailable);
      CHECK(check::has(failure.text, "on one host"));
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(store.size() == 1);  // the last key of rank 0, which other ranks may still read
}

TEST(the_end_of_a_connection_is_named_while_ranks_meet) {
  const shm::Patience patience{std::chrono::steady_clock::now() + 10s};
  const auto name = "mcr_dl-end-" + std::to_string(getpid());
  const auto listener = shm::listen_at(name, 1);
  auto there = shm::connect_to(name, patience);
  const auto here = shm::accept_from(listener, patience);
  there = File();
  for (const bool text : {false, true}) {
    const auto failure = ranks::failure([&] {
      if (text) {
        shm::receive_text(here, 1, patience);
      } else {
        shm::receive_file(here, patience);
      }
    });
    CHECK(failure.code == ErrorCode::Backend && check::has(failure.text, "got the end of the connection"));
  }
}

namespace {

/// A store whose reader connects to the sockets of all cards without being a rank.
class StrangerStore final : public OwnStore {
 public:
  using OwnStore::OwnStore;
  void set(const std::string& key, const std::string& value) override {
    if (key.starts_with("card/")) visit(value);
    OwnStore::set(key, value);
  }

 private:
  void visit(const std::string& card) {
    std::istringstream lines(card);
    std::string name;
    for (int line = 0; line < 4; ++line) std::getline(lines, name);
    const shm::Patience patience{std::chrono::steady_clock::now() + 10s};
    for (const auto* hello : {"", "too short", "not the token of any rank, but of the length of a hello, or longer"}) {
      strangers_.push_back(shm::connect_to(name, patience));
      if (*hello != 0) shm::send_text(strangers_.back(), hello);
    }
  }

  std::vector<File> strangers_;
};

}  // namespace

TEST(other_processes_that_connect_do_not_delay_the_ranks) {
  MemoryStore store;
  std::array<StrangerStore, 3> visited{StrangerStore(store), StrangerStore(store), StrangerStore(store)};
  std::vector<std::thread> threads;
  std::atomic<int> met{0};
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto spec = ranks::spec(3, rank);
      spec.store = &visited[static_cast<std::size_t>(rank)];
      spec.timeout = 20s;
      shm::meet(spec, [] { return int64_t{64} << 20; });
      ++met;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(met == 3);
}

// In a network namespace of this thread and of those that it starts.
TEST(ranks_connect_where_few_connections_may_wait) {
  const File before(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (unshare(CLONE_NEWNET) != 0) {
    std::puts("few waiting connections: NOT CHECKED, since this user may make no network namespace");
    return;
  }
  for (const int most : {1, 0}) {
    std::ofstream("/proc/sys/net/core/somaxconn") << most << std::flush;
    CHECK(shm::largest_backlog() == 1);
    std::atomic<int> connected{0};
    together(6, [&](shm::Engine& engine, int) {
      run(engine, call_of(Op::barrier, nullptr, nullptr));
      ++connected;
    });
    CHECK(connected == 6);
  }
  CHECK(setns(before.get(), CLONE_NEWNET) == 0);
}
