// SPDX-License-Identifier: Apache-2.0
// Defects on purpose: `make sanitize` first shows that they are found inside Python, with its options. A run that
// reports nothing is worth only as much.
#include <limits>
#include <memory>
#include <thread>

extern "C" int race(int value) {
  std::thread other([&value] { ++value; });
  ++value;
  other.join();
  return value;
}

extern "C" int overrun(int size) {
  const auto array = std::make_unique<int[]>(static_cast<std::size_t>(size));
  return array[static_cast<std::size_t>(size)];
}

extern "C" int overflow(int value) { return std::numeric_limits<int>::max() + value; }
