// SPDX-License-Identifier: Apache-2.0
#include "base/free_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

namespace mcr {

namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// The number behind a name, as in "MemAvailable:   100 kB".
std::optional<int64_t> number_behind(std::string_view name, const std::string& path) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string found;
    int64_t number = 0;
    if (words >> found >> number && found == name) return number;
  }
  return std::nullopt;
}

// None if the file has no number, but the word "max".
std::optional<int64_t> number_in(const std::string& path) {
  int64_t number = 0;
  if (std::ifstream(path) >> number) return number;
  return std::nullopt;
}

// `swap`: free bytes of the system's.
int64_t free_in_group(const std::string& folder, int64_t swap) {
  const auto most = number_in(folder + "/memory.max");
  const auto used = number_in(folder + "/memory.current");
  if (!most || !used) return kUnknown;
  int64_t cached = 0;  // which the system drops first
  for (const auto* list : {"inactive_file", "active_file", "slab_reclaimable"}) {
    cached += number_behind(list, folder + "/memory.stat").value_or(0);
  }
  if (const auto most_swap = number_in(folder + "/memory.swap.max")) {
    const auto swapped = number_in(folder + "/memory.swap.current").value_or(0);
    swap = std::clamp<int64_t>(*most_swap - swapped, 0, swap);
  }
  return std::max<int64_t>(*most - *used, 0) + cached + swap;
}

// The group of the process and those around it, each of which may have a bound.
int64_t free_in_groups(const std::string& root, int64_t swap) {
  std::ifstream groups(root + "proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::/")) path = line.substr(3);
  }
  auto least = free_in_group(root + "sys/fs/cgroup", swap);
  for (; !path.empty(); path.resize(path.rfind('/'))) {
    least = std::min(least, free_in_group(root + "sys/fs/cgroup" + path, swap));
  }
  return least;
}

}  // namespace

int64_t free_memory(bool swaps, const std::string& root) {
  constexpr int64_t kUnit = 1024;
  const auto memory = root + "proc/meminfo";
  const auto swap = swaps ? number_behind("SwapFree:", memory).value_or(0) * kUnit : 0;
  const auto free = number_behind("MemAvailable:", memory);
  return std::min(free ? *free * kUnit + swap : kUnknown, free_in_groups(root, swap));
}

}  // namespace mcr
