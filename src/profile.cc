// SPDX-License-Identifier: Apache-2.0
#include "profile.h"

namespace mcr {

std::atomic<Profiler*> Profiler::installed_{nullptr};

}  // namespace mcr
