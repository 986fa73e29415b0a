// SPDX-License-Identifier: Apache-2.0
// Cost curves and their comparison, in whole numbers: a last bit that differs between two processors or math libraries
// must not give two ranks two answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mcr {

/// log2 with 16 fractional bits; of 0 as of 1.
int32_t fixed_log2(int64_t value);

/// Sizes that count as about the same: four classes for each power of two.
int size_class(int64_t bytes);

/// How long a candidate takes, by message size. Between its points it is interpolated in log-log coordinates; below the
/// first it is constant, beyond the last it grows with the size.
class CostCurve {
 public:
  struct Point {
    int64_t bytes;
    int32_t cost;  // log2 of nanoseconds, 16 fractional bits
  };

  CostCurve() = default;
  /// Of points in any order: of several at one size the first counts. Sizes and costs that nothing has, as a broken
  /// table may give them, become the nearest possible ones.
  explicit CostCurve(std::vector<Point> points);

  bool known() const { return !points_.empty(); }
  int32_t at(int64_t bytes) const;
  const std::vector<Point>& points() const { return points_; }
  /// Adds a point, in the place of those of its size class.
  void put(Point point);

 private:
  std::vector<Point> points_;
};

/// One range of message sizes: from `from` to the next one's.
struct CostRange {
  int64_t from;
  std::size_t curve;  // place among the curves compared
};

/// A candidate is left for another only where the other is cheaper by this: 2 %.
inline constexpr int32_t kHysteresis = 1872;

/// The cheapest of the curves by message size, going up from 0, with hysteresis. Unknown curves take no part; no ranges
/// if none is known.
std::vector<CostRange> cheapest(std::span<const CostCurve* const> curves);

/// The curve with the lowest mean cost (of logarithms) over the sizes at which any has been measured: the choice where
/// the size is not known to all ranks. The number of curves if none is known.
std::size_t cheapest_overall(std::span<const CostCurve* const> curves);

}  // namespace mcr
