// SPDX-License-Identifier: Apache-2.0
// Two defects on purpose. `make sanitize` first shows that its sanitizer, with its options, finds them inside Python: a run
// that reports nothing is worth only as much.
#include <memory>
#include <thread>

namespace {

int counter = 0;  // two threads, no lock

}  // namespace

extern "C" int planted(int size) {
  std::thread other([] { ++counter; });
  ++counter;
  other.join();
  const auto array = std::make_unique<int[]>(static_cast<std::size_t>(size));
  return counter + array[static_cast<std::size_t>(size)];  // one past its end
}
