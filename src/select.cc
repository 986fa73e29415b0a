// SPDX-License-Identifier: Apache-2.0
#include "select.h"

namespace mcr {

Group::Slot& select(Group& group, const Call& call) {
  auto& slots = group.slots();
  if (slots.size() > 1) {
    for (auto& slot : slots) {
      if (slot.communicator->supports(call)) return slot;
    }
  }
  return slots.front();
}

}  // namespace mcr
