// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <atomic>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
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

// An argument selects the tests whose names contain it.
int main(int argc, char** argv) {
  const std::string_view part = argc > 1 ? argv[1] : "";
  std::size_t run = 0;
  for (const auto& [name, body] : check::tests()) {
    if (std::string_view(name).find(part) == std::string_view::npos) continue;
    ++run;
    try {
      body();
    } catch (const std::exception& error) {
      check::failed(name, 0, error.what());
    }
  }
  std::printf("%zu tests, %d failures\n", run, check::failures.load());
  return check::failures == 0 && run > 0 ? 0 : 1;
}
