// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace mcr {

/// Uninitialised memory. When a large piece is freed it is cached for the next request of about that size: faulting in
/// fresh pages costs as much as the work done on them.
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(int64_t bytes);
  Scratch(Scratch&&) noexcept = default;
  Scratch& operator=(Scratch&& other) noexcept;
  ~Scratch();

  std::byte* get() const { return memory_.get(); }

 private:
  void give_up() noexcept;

  int64_t bytes_ = 0;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace mcr
