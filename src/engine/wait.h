// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "runtime/work.h"

namespace mcr {

/// Waits until the work is complete; throws its error, or Timeout with the operation still running.
void wait(Work& work, std::chrono::milliseconds limit, Interrupt interrupt, CallerLock* lock = nullptr);

}  // namespace mcr
