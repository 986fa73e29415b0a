// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/forced.h"

#include <algorithm>
#include <string>

namespace mcr::mpi {

namespace {

struct Setting {
  int variant;
  Op op;
  bool vectored;
  std::string_view variable;  // after "coll_tuned_"
  int value;
};

// Those that were ahead of the library's own choice somewhere on one host (docs/tuning.md). The values are the
// library's numbers of its algorithms, and bytes.
constexpr std::array<Setting, ForcedAlgorithms::kSettings> kTable = {{
    {1, Op::reduce, false, "reduce_algorithm", 3},
    {1, Op::all_reduce, false, "allreduce_algorithm", 5},
    {1, Op::all_reduce, false, "allreduce_algorithm_segmentsize", 256 << 10},
    {2, Op::all_reduce, false, "allreduce_algorithm", 3},
    {2, Op::reduce_scatter, false, "reduce_scatter_block_algorithm", 3},
    {2, Op::reduce_scatter, true, "reduce_scatter_algorithm", 2},
}};

constexpr std::string_view kPrefix = "coll_tuned_";

}  // namespace

void ForcedAlgorithms::start() {
  enabled_ = Control::open(std::string(kPrefix) + "use_dynamic_rules");
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    controls_[i] = Control::open(std::string(kPrefix).append(kTable[i].variable));
  }
  if (!enabled_.exists() || !std::ranges::all_of(controls_, &Control::exists)) stop();
}

void ForcedAlgorithms::stop() {
  enabled_.close();
  for (auto& control : controls_) control.close();
}

bool ForcedAlgorithms::forces(const Call& call, int variant) const {
  if (call.asynchronous) return false;
  return std::any_of(kTable.begin(), kTable.end(), [&](const Setting& row) {
    return row.variant == variant && row.op == call.op && row.vectored == call.vectored;
  });
}

void ForcedAlgorithms::use(int variant) const {
  for (const auto& control : controls_) control.restore();
  enabled_.write(variant == 0 ? enabled_.own : 1);
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (kTable[i].variant == variant) controls_[i].write(kTable[i].value);
  }
}

}  // namespace mcr::mpi
