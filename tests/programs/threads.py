# SPDX-License-Identifier: Apache-2.0
"""Blocking collectives of several threads at once on MPI, the use of MPI_THREAD_MULTIPLE."""

import mcr_dl
from ranks.works import four_threads

mcr_dl.init_process_group("mpi")
four_threads("mpi", blocking=True)
mcr_dl.finalize()
print("threads: done", flush=True)
