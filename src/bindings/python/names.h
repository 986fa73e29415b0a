// SPDX-License-Identifier: Apache-2.0
// Python's names for the enumerators of the core's tables.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "base/types.h"

namespace mcr::python {

/// The enumerator whose table row has the name. Throws InvalidArgument for an unknown name.
template <class Enum, class Table>
Enum named(const Table& table, std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < table.size(); ++i) {
    std::string_view entry;
    if constexpr (std::is_convertible_v<typename Table::value_type, std::string_view>) {
      entry = table[i];
    } else {
      entry = table[i].name;
    }
    if (entry == name) return static_cast<Enum>(i);
    known += (known.empty() ? "" : ", ") + std::string(entry);
  }
  throw Error(ErrorCode::InvalidArgument, "expected one of " + known + ", got '" + std::string(name) + "'");
}

/// The type of devices that has the name. Throws InvalidArgument for an unknown name.
inline DeviceType device_type(std::string_view text) {
  static constexpr std::array kKnown = {name(DeviceType::CPU), name(DeviceType::CUDA)};
  return named<DeviceType>(kKnown, text);
}

}  // namespace mcr::python
