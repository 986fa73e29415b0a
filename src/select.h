// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "group.h"

namespace mcr {

/// The backend of a call that names none. Without tuning tables: the first of the group's backends, in the order in
/// which they were given at init, that has the operation natively; else the first. All ranks decide alike because that
/// order and supports() are equal on all ranks.
Group::Slot& select(Group& group, const Call& call);

}  // namespace mcr
