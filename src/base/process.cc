// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/text.h"

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

std::string_view value_of_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool flag_of_variable(const char* name, bool otherwise, const std::string& prefix) {
  const auto text = value_of_variable(name);
  if (text.empty()) return otherwise;
  if (text == "0" || text == "1") return text == "1";
  throw Error(ErrorCode::InvalidArgument, prefix + name + ": expected 0 or 1, got '" + std::string(text) + "'");
}

int64_t bytes_of_variable(const char* name, int64_t otherwise, const std::string& prefix) {
  const auto text = value_of_variable(name);
  if (text.empty()) return otherwise;
  if (const auto bytes = whole_number(text); bytes && *bytes > 0) return *bytes;
  throw Error(ErrorCode::InvalidArgument,
              prefix + name + ": expected a number of bytes, got '" + std::string(text) + "'");
}

}  // namespace mcr
