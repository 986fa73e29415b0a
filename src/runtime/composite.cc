// SPDX-License-Identifier: Apache-2.0
#include "runtime/composite.h"

namespace mcr {

Registry::Entry& CompositeBackend::add(const std::string& name, const std::string& text, bool moves_data) {
  if (auto* entry = Registry::instance().find(name)) return *entry;
  return Registry::instance().add(name, std::make_unique<CompositeBackend>(text, moves_data));
}

}  // namespace mcr
