// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace mcr::python {

/// From now on torch.profiler shows the calls that backends get, as mcr_dl.all_reduce[mpi].
void install_profiler();

}  // namespace mcr::python
