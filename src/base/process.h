// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace mcr {

/// Notes that the process is ending: from now on no resource is released whose release may wait for other ranks. Any
/// thread.
void leave_process() noexcept;
bool process_leaves() noexcept;

}  // namespace mcr
