// SPDX-License-Identifier: Apache-2.0
#include "observe/profile.h"

namespace mcr {

std::atomic<Profiler*> Profiler::installed_{nullptr};

}  // namespace mcr
