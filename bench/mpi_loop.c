// SPDX-License-Identifier: Apache-2.0
// The yardstick of bench/overhead.py: the same MPI calls in a C loop, in the same process, on a communicator of their own.
#include <mpi.h>

static MPI_Comm comm = MPI_COMM_NULL;

int mcr_loop_start(void) { return MPI_Comm_dup(MPI_COMM_WORLD, &comm); }

// Seconds per call. `bytes` is what one rank holds: of the buffer (all_reduce, broadcast) or of its input.
double mcr_loop(int op, int calls, char* in, char* out, int bytes) {
  int size = 1;
  MPI_Comm_size(comm, &size);
  const double start = MPI_Wtime();
  for (int i = 0; i < calls; ++i) {
    switch (op) {
      case 0: MPI_Allreduce(MPI_IN_PLACE, out, bytes / 4, MPI_FLOAT, MPI_MAX, comm); break;
      case 1: MPI_Alltoall(in, bytes / 4 / size, MPI_FLOAT, out, bytes / 4 / size, MPI_FLOAT, comm); break;
      case 2: MPI_Bcast(out, bytes / 4, MPI_FLOAT, 0, comm); break;
      case 3: MPI_Allgather(in, bytes / 4, MPI_FLOAT, out, bytes / 4, MPI_FLOAT, comm); break;
      case 4: {
        MPI_Request request;
        MPI_Iallreduce(MPI_IN_PLACE, out, bytes / 4, MPI_FLOAT, MPI_MAX, comm, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        break;
      }
      default: return -1;
    }
  }
  return (MPI_Wtime() - start) / calls;
}

