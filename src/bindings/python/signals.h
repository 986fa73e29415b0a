// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace mcr::python {

/// Runs Python's signal handlers from a thread that waits without the GIL; throws ErrorAlreadySet on Ctrl-C.
void check_signals();

}  // namespace mcr::python
