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

int64_t free_in_group(const std::string& folder) {
  const auto most = number_in(folder + "/memory.max");
  const auto used = number_in(folder + "/memory.current");
  if (!most || !used) return kUnknown;
  int64_t cached = 0;  // of files, which the system drops first
  for (const auto* list : {"inactive_file", "active_file"}) {
    cached += number_behind(list, folder + "/memory.stat").value_or(0);
  }
  return std::max<int64_t>(*most - *used, 0) + cached;
}

// The group of the process and those around it, each of which may have a bound.
int64_t free_in_groups(const std::string& root) {
  std::ifstream groups(root + "proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::/")) path = line.substr(3);
  }
  auto least = free_in_group(root + "sys/fs/cgroup");
  for (; !path.empty(); path.resize(path.rfind('/'))) {
    least = std::min(least, free_in_group(root + "sys/fs/cgroup" + path));
  }
  return least;
}

}  // namespace

int64_t free_memory(const std::string& root) {
  constexpr int64_t kUnit = 1024;
  const auto memory = root + "proc/meminfo";
  const auto free = number_behind("MemAvailable:", memory);
  const auto least = std::min(free ? *free * kUnit : kUnknown, free_in_groups(root));
  if (least == kUnknown) return kUnknown;
  return least + number_behind("SwapFree:", memory).value_or(0) * kUnit;
}

}  // namespace mcr
