// SPDX-License-Identifier: Apache-2.0
// Cost curves and their comparison, in whole numbers: a last bit that differs between two processors or math libraries
// must not give two ranks two answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mcr {

/// log2 with 16 fractional bits; 0 counts as 1.
int32_t fixed_log2(int64_t value);

/// Sizes that count as about equal: four classes per power of two.
int size_class(int64_t bytes);

/// A candidate's time by data size. Interpolated between points in log-log coordinates; constant below the first point,
/// proportional to the size beyond the last.
class CostCurve {
 public:
  struct Point {
    int64_t bytes;
    int32_t cost;  // log2 of nanoseconds, 16 fractional bits
  };

  CostCurve() = default;
  /// From points in any order; of several points at one size the first is used. Impossible sizes and costs, for example
  /// from a broken table, are replaced by the nearest possible values.
  explicit CostCurve(std::vector<Point> points);

  bool known() const { return !points_.empty(); }
  int32_t at(int64_t bytes) const;
  const std::vector<Point>& points() const { return points_; }
  /// Adds a point and removes those of its size class.
  void put(Point point);

 private:
  std::vector<Point> points_;
};

inline const CostCurve kUnmeasured;

/// A range of data sizes: from `from` to the start of the next range.
struct CostRange {
  int64_t from;
  std::size_t curve;  // index among the curves compared
};

/// A candidate is replaced by another only if the other is cheaper by this: 2 %.
inline constexpr int32_t kHysteresis = 1872;

/// The cheapest curve by data size, going up from 0, with hysteresis. Unknown curves are skipped; no ranges if none is
/// known.
std::vector<CostRange> cheapest(std::span<const CostCurve* const> curves);

/// The curve with the lowest mean cost (of logarithms) over the sizes at which any curve was measured: the choice where
/// not all ranks know the size. The number of curves if none is known.
std::size_t cheapest_overall(std::span<const CostCurve* const> curves);

}  // namespace mcr
