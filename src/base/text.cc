// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <charconv>
#include <system_error>

namespace mcr {

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace mcr
