// SPDX-License-Identifier: Apache-2.0
// Tensors in the heap that the processes of a host map.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>

#include "shm_ranks.h"

using namespace shm_ranks;

namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = 2 << 20;

/// A store for ranks that are processes: a file for each key.
class FolderStore final : public Store {
 public:
  explicit FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void set(const std::string& key, const std::string& value) override {
    const auto made = path(key) + ".part" + std::to_string(getpid());
    std::ofstream(made) << value;
    std::filesystem::rename(made, path(key));
  }
  std::string get(const std::string& key) override {
    const auto end = std::chrono::steady_clock::now() + 60s;
    for (;;) {
      if (std::ifstream in(path(key)); in) return {std::istreambuf_iterator<char>(in), {}};
      if (std::chrono::steady_clock::now() > end) throw Error(ErrorCode::Timeout, "store: " + key);
      std::this_thread::sleep_for(1ms);
    }
  }

 private:
  std::string path(std::string key) const {
    std::ranges::replace(key, '/', '-');
    return folder_ / key;
  }

  const std::filesystem::path folder_;
};

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

TEST(a_heap_is_left_out_of_core_dumps) {
  SharedHeap heap(8 * kPage);
  std::ifstream maps("/proc/self/smaps");
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<std::uintptr_t>(heap.begin()) << '-';
  std::string line;
  while (std::getline(maps, line) && !line.starts_with(begin.str())) continue;
  while (std::getline(maps, line) && !line.starts_with("VmFlags:")) continue;
  CHECK(check::has(line, " dd"));  // do not dump
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

// Linux limits how many files of an ordinary user are under way between processes, by the limit of open files.
TEST(heaps_reach_more_ranks_than_files_may_be_under_way) {
  constexpr int kRanks = 24;  // 552 pairs
  constexpr rlim_t kFiles = 3 * kRanks + 40;
  std::string folder = std::filesystem::temp_directory_path() / "mcr_dl_XXXXXX";
  CHECK(mkdtemp(folder.data()) != nullptr);
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    const rlimit files{kFiles, kFiles};
    if (setrlimit(RLIMIT_NOFILE, &files) != 0 || (geteuid() == 0 && setuid(65534) != 0)) _exit(2);
    setenv("MCR_DL_SHM_TENSOR_BYTES", "65536", 1);
    FolderStore store(folder);
    auto spec = ranks::spec(kRanks, rank);
    spec.store = &store;
    int heaps = 0;
    const auto failure = ranks::failure(
        [&] { heaps = static_cast<int>(shm::meet(spec, [] { return int64_t{64} << 20; }).heaps.size()); });
    if (heaps != kRanks) std::fprintf(stderr, "rank %d: %d heaps %s\n", rank, heaps, failure.text.c_str());
    _exit(heaps == kRanks ? 0 : 1);
  }
  for (const auto child : children) {
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
  std::filesystem::remove_all(folder);
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
