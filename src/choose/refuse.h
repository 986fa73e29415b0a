// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace mcr {

/// Throws InvalidArgument, with a text that begins with the subject: "plan: ...".
class Refusal {
 public:
  constexpr explicit Refusal(const char* subject) : subject_(subject) {}

  [[noreturn]] void operator()(const std::string& text) const {
    throw Error(ErrorCode::InvalidArgument, std::string(subject_) + ": " + text);
  }
  /// Throws if the value of `what` is not from `least` to `most`.
  void outside(const std::string& what, int64_t value, int64_t least, int64_t most) const {
    if (value >= least && value <= most) return;
    (*this)(what + ": expected " + std::to_string(least) + " to " + std::to_string(most) + ", got " +
            std::to_string(value));
  }

 private:
  const char* subject_;
};

}  // namespace mcr
