// SPDX-License-Identifier: Apache-2.0
// The algorithms of collectives inside one host, which MPICH lets a program switch between two calls.
#pragma once

#include <algorithm>
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
  void stop();

  bool switches(Op op) const { return of(op).exists(); }
  bool any() const { return std::ranges::any_of(switches_, &Control::exists); }

  /// The calls of an op use a variant as long as this object lives. The switches belong to the process, and MPICH wants
  /// them equal on all ranks: left as they are, a call of some ranks would change what all ranks do later, in other
  /// operations too.
  class Use {
   public:
    explicit Use(const Control* control);
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() {
      if (control_ != nullptr) restore();
    }

   private:
    void restore() noexcept;

    const Control* control_;
  };
  /// For variant 0, the library's own choice, nothing is switched.
  [[nodiscard]] Use use(Op op, int variant) const { return Use(variant != 0 && switches(op) ? &of(op) : nullptr); }

 private:
  const Control& of(Op op) const { return switches_[static_cast<std::size_t>(op)]; }

  std::array<Control, kOps.size()> switches_{};
};

}  // namespace mcr::mpi
