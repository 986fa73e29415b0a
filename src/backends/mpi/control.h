// SPDX-License-Identifier: Apache-2.0
// A control variable of an MPI library (MPI_T): an integer that a program may read and write.
#pragma once

#include <string>

#include "backends/mpi/abi.h"

namespace mcr::mpi {

/// Holds a variable's handle; empty if the library has no such variable. Used under the library's lock, between
/// MPI_T_init_thread and MPI_T_finalize. Trivial, as the process's library is never destroyed: close() frees the
/// handle.
struct Control {
  static Control open(const std::string& name);

  bool exists() const { return handle != MPI_T_CVAR_HANDLE_NULL; }
  /// Throws Error(Backend) if the library refuses the value.
  void write(int value) const;
  /// Writes the initial value.
  void restore() const { write(own); }
  void close();

  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  int own = 0;  // the initial value
};

}  // namespace mcr::mpi
