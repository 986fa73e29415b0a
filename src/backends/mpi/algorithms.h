// SPDX-License-Identifier: Apache-2.0
// The algorithms of collectives inside one host, which MPICH lets a program switch between two calls.
#pragma once

#include <array>
#include <string_view>

#include "backends/mpi/abi.h"
#include "base/ops.h"

namespace mcr::mpi {

/// MPICH has two families of algorithms for the ranks of one host: its own choice, which copies through shared flags
/// (release_gather: fast for small data), and the general ones over point-to-point messages, which are three times as
/// fast for large data. Other libraries have no such switch, and no variant. Used under the library's lock.
class Algorithms {
 public:
  static constexpr std::array<std::string_view, 1> kVariants = {"p2p"};

  /// Finds the library's switches. Call after MPI_Init.
  void start();
  /// Restores the switches.
  void stop();

  bool switches(Op op) const { return controls_[static_cast<std::size_t>(op)].handle != MPI_T_CVAR_HANDLE_NULL; }
  bool any() const { return any_; }

  /// Makes the next call of the op use the variant; 0 is the library's own choice.
  void use(Op op, int variant) {
    auto& control = controls_[static_cast<std::size_t>(op)];
    if (control.current != variant && control.handle != MPI_T_CVAR_HANDLE_NULL) set(control, variant);
  }

 private:
  struct Control {
    MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
    int current = 0;  // variant
    int own = 0;      // the library's initial value
  };

  void find(Op op, std::string_view name);
  static void set(Control& control, int variant);

  std::array<Control, kOps.size()> controls_{};
  bool any_ = false;
  bool started_ = false;
};

}  // namespace mcr::mpi
