// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/control.h"

#include "backends/mpi/library.h"

namespace mcr::mpi {

Control Control::open(const std::string& name) {
  Control control;
  int index = 0;
  if (MPI_T_cvar_get_index(name.c_str(), &index) != MPI_SUCCESS) return control;
  int count = 0;
  check(MPI_T_cvar_handle_alloc(index, nullptr, &control.handle, &count), "MPI_T_cvar_handle_alloc");
  if (count != 1) {
    control.close();  // a read writes so many elements
    return control;
  }
  check(MPI_T_cvar_read(control.handle, &control.own), "MPI_T_cvar_read");
  return control;
}

void Control::write(int value) const { check(MPI_T_cvar_write(handle, &value), "MPI_T_cvar_write"); }

void Control::close() {
  if (exists()) MPI_T_cvar_handle_free(&handle);
  *this = {};
}

}  // namespace mcr::mpi
