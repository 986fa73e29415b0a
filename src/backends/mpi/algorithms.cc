// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/algorithms.h"

#include <cstddef>
#include <string>
#include <utility>

#include "backends/mpi/library.h"

namespace mcr::mpi {

namespace {

// The value "mpir" of MPIR_CVAR_<op>_POSIX_INTRA_ALGORITHM: the first of its enumeration.
constexpr int kGeneral = 0;

// The ops that have both families in MPICH.
constexpr std::pair<Op, std::string_view> kSwitched[] = {
    {Op::all_reduce, "ALLREDUCE"},
    {Op::barrier, "BARRIER"},
    {Op::broadcast, "BCAST"},
    {Op::reduce, "REDUCE"},
};

}  // namespace

void Algorithms::start() {
  int level = 0;
  check(MPI_T_init_thread(MPI_THREAD_SERIALIZED, &level), "MPI_T_init_thread");
  started_ = true;
  for (const auto& [op, name] : kSwitched) find(op, name);
}

void Algorithms::find(Op op, std::string_view name) {
  const std::string variable = "MPIR_CVAR_" + std::string(name) + "_POSIX_INTRA_ALGORITHM";
  int index = 0;
  if (MPI_T_cvar_get_index(variable.c_str(), &index) != MPI_SUCCESS) return;
  auto& control = controls_[static_cast<std::size_t>(op)];
  int count = 0;
  check(MPI_T_cvar_handle_alloc(index, nullptr, &control.handle, &count), "MPI_T_cvar_handle_alloc");
  check(MPI_T_cvar_read(control.handle, &control.own), "MPI_T_cvar_read");
  // If the user has chosen the general ones for the whole program, there is nothing to switch.
  if (count != 1 || control.own == kGeneral) {
    MPI_T_cvar_handle_free(&control.handle);
    control.handle = MPI_T_CVAR_HANDLE_NULL;
    return;
  }
  any_ = true;
}

void Algorithms::set(Control& control, int variant) {
  const int value = variant == 0 ? control.own : kGeneral;
  check(MPI_T_cvar_write(control.handle, &value), "MPI_T_cvar_write");
  control.current = variant;
}

void Algorithms::stop() {
  if (!std::exchange(started_, false)) return;
  for (auto& control : controls_) {
    if (control.handle == MPI_T_CVAR_HANDLE_NULL) continue;
    if (control.current != 0) set(control, 0);
    MPI_T_cvar_handle_free(&control.handle);
    control = {};
  }
  any_ = false;
  MPI_T_finalize();
}

}  // namespace mcr::mpi
