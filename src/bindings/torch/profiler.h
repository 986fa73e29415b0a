// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace mcr::python {

/// From now on torch.profiler shows what backends are given, as mcr_dl.all_reduce[mpi].
void install_profiler();

}  // namespace mcr::python
