// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

/// The value of an environment variable; empty if it is not set.
std::string_view value_of_variable(const char* name);

/// Whether an environment variable is 1, or `otherwise` if it is not set or empty. Throws Error, whose text begins with
/// `prefix`, if it is neither 0 nor 1.
bool flag_of_variable(const char* name, bool otherwise, const std::string& prefix = "");

/// The number of bytes that an environment variable sets, or `otherwise` if it is not set or empty. Throws Error, whose
/// text begins with `prefix`, if it is no positive number.
int64_t bytes_of_variable(const char* name, int64_t otherwise, const std::string& prefix);

}  // namespace mcr
