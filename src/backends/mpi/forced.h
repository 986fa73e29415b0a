// SPDX-License-Identifier: Apache-2.0
// The algorithms of blocking collectives that Open MPI lets a program force for the communicators that it makes.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "backends/mpi/control.h"
#include "base/call.h"

namespace mcr::mpi {

/// Open MPI's component coll/tuned chooses among its algorithms by tables that were measured on clusters. Its variables
/// force an algorithm for each op; a communicator reads them when it is made, so that every variant has communicators
/// of its own. Other libraries have no such variables. Used under the library's lock.
class ForcedAlgorithms {
 public:
  static constexpr std::array<std::string_view, 2> kVariants = {"ring", "doubling"};
  static constexpr std::size_t kSettings = 6;  // rows of the table in forced.cc

  /// Finds the library's variables: all or none. Call after MPI_T_init_thread.
  void start();
  /// Releases the variables.
  void stop();

  /// Whether the library has the variables of all variants.
  bool any() const { return enabled_.exists(); }
  /// Whether the variant forces an algorithm for this call. Calls that are started have other algorithms.
  bool forces(const Call& call, int variant) const;

  /// Makes the communicators that are made from now on use the variant; 0 is the library's own choice.
  void use(int variant) const;

 private:
  Control enabled_;
  std::array<Control, kSettings> controls_{};
};

}  // namespace mcr::mpi
