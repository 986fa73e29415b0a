// SPDX-License-Identifier: Apache-2.0
// What the targets make of a fuzzer's bytes; where these end, everything is 0.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

/// A broken promise ends the process, so that the fuzzer keeps the input.
#define PROMISE(condition) \
  if (!(condition)) __builtin_trap()

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size);

class Bytes {
 public:
  Bytes(const uint8_t* data, std::size_t size) : left_(data, size) {}

  template <class T>
  T take() {
    T value{};
    const auto size = std::min(sizeof(T), left_.size());
    std::memcpy(&value, left_.data(), size);
    left_ = left_.subspan(size);
    return value;
  }
  /// From `least` to `most`.
  int64_t number(int64_t least, int64_t most) {
    const auto width = static_cast<uint64_t>(most - least) + 1;
    return least + static_cast<int64_t>(take<uint16_t>() % width);
  }
  /// Mostly small, sometimes anything.
  int64_t any_number() {
    const auto kind = take<uint8_t>();
    return kind < 250 ? kind % 12 : take<int64_t>();
  }
  std::vector<int64_t> numbers(int64_t count) {
    std::vector<int64_t> made(static_cast<std::size_t>(count));
    for (auto& each : made) each = any_number();
    return made;
  }
  std::string rest() const { return {left_.begin(), left_.end()}; }
  std::span<const uint8_t> left() const { return left_; }

 private:
  std::span<const uint8_t> left_;
};
