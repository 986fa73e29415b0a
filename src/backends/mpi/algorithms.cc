// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/algorithms.h"

#include <cstddef>
#include <string>
#include <utility>

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
  for (const auto& [op, name] : kSwitched) {
    auto& control = switches_[static_cast<std::size_t>(op)];
    control = Control::open("MPIR_CVAR_" + std::string(name) + "_POSIX_INTRA_ALGORITHM");
    // If the user has chosen the general ones for the whole program, there is nothing to switch.
    if (control.own == kGeneral) control.close();
  }
}

void Algorithms::stop() {
  for (auto& control : switches_) control.close();
}

Algorithms::Use::Use(const Control* control) : control_(control) {
  if (control_ != nullptr) control_->write(kGeneral);
}

// The library has accepted this value before.
void Algorithms::Use::restore() noexcept { control_->restore(); }

}  // namespace mcr::mpi
