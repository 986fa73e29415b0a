// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace mcr {

/// The texts of a range's elements, with `separator` between them. `text(element)`: what can be appended to a string.
template <class Range, class Text = std::identity>
std::string joined(const Range& range, Text text = {}, std::string_view separator = ", ") {
  std::string all;
  for (const auto& one : range) {
    if (!all.empty()) all += separator;
    all += std::invoke(text, one);
  }
  return all;
}

/// The number, if the whole text is one in decimal digits, with or without a minus, that fits.
std::optional<int64_t> whole_number(std::string_view text);

}  // namespace mcr
