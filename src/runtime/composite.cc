// SPDX-License-Identifier: Apache-2.0
#include "runtime/composite.h"

#include <algorithm>

namespace mcr {

Registry::Entry& CompositeBackend::add(const std::string& name, std::span<const std::string> parts,
                                       const std::string& text) {
  auto& registry = Registry::instance();
  if (auto* entry = registry.find(name)) return *entry;
  const bool moves_data = std::ranges::all_of(parts, [&](const std::string& part) {
    const auto* entry = registry.find(part);
    return entry == nullptr || entry->backend->moves_data();
  });
  return registry.add(name, std::make_unique<CompositeBackend>(text, moves_data));
}

}  // namespace mcr
