// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace mcr {

/// Notes that the process is ending: from now on no resource is released whose release may wait for other ranks. Any
/// thread.
void leave_process() noexcept;
bool process_leaves() noexcept;

/// Where a process runs. A field is empty if the system does not say.
struct Place {
  std::string machine;  // equal for all processes that run on one kernel
  std::string network;  // the network namespace
};
Place own_place();

/// The number of bytes that an environment variable sets, or `otherwise` if it is not set. Throws Error if it is no
/// positive number.
int64_t bytes_of_variable(const char* variable, int64_t otherwise);

}  // namespace mcr
