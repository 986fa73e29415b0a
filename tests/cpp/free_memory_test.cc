// SPDX-License-Identifier: Apache-2.0
#include "base/free_memory.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/shared_memory.h"
#include "check.h"
#include "ranks.h"

using namespace mcr;

namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

/// A folder with files as those of Linux.
class System {
 public:
  System() {
    std::string name = std::filesystem::temp_directory_path() / "mcr_dl_XXXXXX";
    CHECK(mkdtemp(name.data()) != nullptr);
    folder_ = name;
  }
  System(const System&) = delete;
  System& operator=(const System&) = delete;
  ~System() { std::filesystem::remove_all(folder_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text;
  }
  void write_group(const std::string& path, const std::string& most, int64_t used, int64_t cached) const {
    const auto group = "sys/fs/cgroup" + path;
    write(group + "/memory.max", most + "\n");
    write(group + "/memory.current", std::to_string(used) + "\n");
    write(group + "/memory.stat", "anon 5\ninactive_file " + std::to_string(cached) + "\nactive_file 1\n");
  }
  int64_t free(bool swaps = true) const { return free_memory(swaps, folder_.string() + "/"); }

 private:
  std::filesystem::path folder_;
};

}  // namespace

TEST(free_memory_is_the_least_of_the_system_and_its_groups) {
  const System system;
  CHECK(system.free() == kUnknown);
  system.write("proc/meminfo", "MemTotal:  900 kB\nMemFree:  1 kB\nMemAvailable:   100 kB\nSwapFree:   2 kB\n");
  CHECK(system.free() == 102 * 1024);
  system.write("proc/self/cgroup", "4:memory:/old\n0::/outer/inner\n");
  CHECK(system.free() == 102 * 1024);
  system.write_group("/outer/inner", "max", 10, 0);
  CHECK(system.free() == 102 * 1024);
  system.write_group("/outer", "5000", 4000, 300);
  CHECK(system.free() == 1000 + 301 + 2048);
  system.write_group("/outer/inner", "900", 1000, 20);  // the bound has been lowered
  CHECK(system.free() == 21 + 2048);
  system.write_group("", "10", 0, 0);  // a container sees its group there
  CHECK(system.free() == 11 + 2048);
  CHECK(system.free(false) == 11);
}

TEST(swap_counts_as_far_as_the_group_may_use_it) {
  const System system;
  system.write("proc/meminfo", "MemAvailable:   100 kB\nSwapFree:   50 kB\n");
  system.write("proc/self/cgroup", "0::/inner\n");
  system.write_group("/inner", "5000", 4000, 300);
  system.write("sys/fs/cgroup/inner/memory.stat", "inactive_file 300\nslab_reclaimable 1\n");
  system.write("sys/fs/cgroup/inner/memory.swap.current", "200\n");
  const std::vector<std::pair<const char*, int64_t>> bounds = {
      {"max", 50 * 1024}, {"0", 0}, {"100", 0}, {"700", 500}, {"999999", 50 * 1024}};
  for (const auto& [bound, swap] : bounds) {
    system.write("sys/fs/cgroup/inner/memory.swap.max", std::string(bound) + "\n");
    CHECK(system.free() == 1301 + swap && system.free(false) == 1301);
  }
  system.write("proc/meminfo", "MemAvailable:   1 kB\nSwapFree:   0 kB\n");
  CHECK(system.free() == 1024);
}

TEST(more_memory_than_is_free_is_an_error) {
  CHECK(free_memory() > 0);
  Memory::require_free(std::min<int64_t>(free_memory() / 2, 1 << 20), "A_VARIABLE");
  if (free_memory() == kUnknown) return;
  const auto failure = ranks::failure([] { Memory::require_free(kUnknown, "A_VARIABLE"); });
  CHECK(failure.code == ErrorCode::Backend);
  CHECK(check::has(failure.text, "bytes of free memory, got ", "A_VARIABLE sets a lower bound"));
}
