// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace mcr {

/// The bytes of memory that this process can still take before the system ends a process, as far as Linux and the
/// control groups (version 2) of the process say; the largest number if they do not. Memory that the system can take
/// back counts as free, and with `swaps` memory that it can swap out, too. `root`: the folder that has proc and sys.
int64_t free_memory(bool swaps = true, const std::string& root = "/");

}  // namespace mcr
