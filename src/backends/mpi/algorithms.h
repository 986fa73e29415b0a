// SPDX-License-Identifier: Apache-2.0
// The algorithms of collectives inside one host, which MPICH lets a program switch between two calls.
#pragma once

#include <array>
#include <string_view>

#include "backends/mpi/control.h"
#include "base/ops.h"

namespace mcr::mpi {

/// MPICH has two families of algorithms for the ranks of one host: its own choice, which copies through shared flags
/// (release_gather: fast for small data), and the general ones over point-to-point messages, which are three times as
/// fast for large data. Other libraries have no such switch. Used under the library's lock.
class Algorithms {
 public:
  static constexpr std::array<std::string_view, 1> kVariants = {"p2p"};

  /// Finds the library's switches. Call after MPI_T_init_thread.
  void start();
  /// Restores the switches.
  void stop();

  bool switches(Op op) const { return switches_[static_cast<std::size_t>(op)].control.exists(); }
  bool any() const { return any_; }

  /// Makes the next call of the op use the variant; 0 is the library's own choice.
  void use(Op op, int variant) {
    auto& one = switches_[static_cast<std::size_t>(op)];
    if (one.current != variant && one.control.exists()) set(one, variant);
  }

 private:
  struct Switch {
    Control control;
    int current = 0;  // variant
  };

  static void set(Switch& one, int variant);

  std::array<Switch, kOps.size()> switches_{};
  bool any_ = false;
};

}  // namespace mcr::mpi
