// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <sys/stat.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"

namespace mcr {

namespace {

std::atomic<bool> leaves{false};

}  // namespace

void leave_process() noexcept { leaves = true; }

bool process_leaves() noexcept { return leaves; }

Place own_place() {
  Place place;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> place.machine;
  struct stat found{};
  if (stat("/proc/thread-self/ns/net", &found) == 0) place.network = std::to_string(found.st_ino);
  return place;
}

int64_t bytes_of_variable(const char* variable, int64_t otherwise) {
  const char* const given = std::getenv(variable);
  if (given == nullptr || *given == '\0') return otherwise;
  const std::string_view text(given);
  int64_t bytes = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (problem == std::errc() && end == text.data() + text.size() && bytes > 0) return bytes;
  throw Error(ErrorCode::InvalidArgument,
              "shm: " + std::string(variable) + ": expected a number of bytes, got '" + given + "'");
}

}  // namespace mcr
