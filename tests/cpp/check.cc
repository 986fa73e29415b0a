// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <atomic>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace check {

namespace {

std::atomic<int> failures{0};

auto& tests() {
  static std::vector<std::pair<const char*, void (*)()>> all;
  return all;
}

}  // namespace

Register::Register(const char* name, void (*body)()) { tests().emplace_back(name, body); }

void failed(const char* file, int line, std::string_view what) {
  ++failures;
  std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, std::string(what).c_str());
}

}  // namespace check

int main() {
  for (const auto& [name, body] : check::tests()) {
    try {
      body();
    } catch (const std::exception& error) {
      check::failed(name, 0, error.what());
    }
  }
  std::printf("%zu tests, %d failures\n", check::tests().size(), check::failures.load());
  return check::failures == 0 ? 0 : 1;
}
