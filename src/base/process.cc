// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <atomic>

namespace mcr {

namespace {

std::atomic<bool> leaves{false};

}  // namespace

void leave_process() noexcept { leaves = true; }

bool process_leaves() noexcept { return leaves; }

}  // namespace mcr
