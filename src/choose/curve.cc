// SPDX-License-Identifier: Apache-2.0
#include "choose/curve.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace mcr {

namespace {

constexpr int kFraction = 16;
constexpr int32_t kMost = 1 << 27;  // for a cost: the sum of two costs still fits

CostCurve::Point possible(CostCurve::Point point) {
  return {std::max<int64_t>(point.bytes, 0), std::clamp(point.cost, -kMost, kMost)};
}

// Sizes at which any of the curves has a point, ascending.
std::vector<int64_t> measured_sizes(std::span<const CostCurve* const> curves) {
  std::vector<int64_t> sizes;
  for (const auto* curve : curves) {
    for (const auto& point : curve->points()) sizes.push_back(point.bytes);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

std::size_t cheapest_at(std::span<const CostCurve* const> curves, int64_t bytes) {
  std::size_t best = curves.size();
  for (std::size_t i = 0; i < curves.size(); ++i) {
    if (curves[i]->known() && (best == curves.size() || curves[i]->at(bytes) < curves[best]->at(bytes))) best = i;
  }
  return best;
}

}  // namespace

int32_t fixed_log2(int64_t value) {
  if (value <= 1) return 0;
  const auto bits = static_cast<uint64_t>(value);
  const int whole = std::bit_width(bits) - 1;
  // Each squaring of the mantissa, which has 31 bits after the point, gives one bit of the fraction.
  uint64_t mantissa = whole <= 31 ? bits << (31 - whole) : bits >> (whole - 31);
  int32_t result = whole;
  for (int i = 0; i < kFraction; ++i) {
    mantissa = (mantissa * mantissa) >> 31;
    const auto bit = static_cast<int32_t>(mantissa >> 32);
    mantissa >>= bit;
    result = (result << 1) | bit;
  }
  return result;
}

int size_class(int64_t bytes) {
  if (bytes < 4) return static_cast<int>(bytes);
  const int top = std::bit_width(static_cast<uint64_t>(bytes)) - 1;
  return top * 4 + static_cast<int>((bytes >> (top - 2)) & 3);
}

CostCurve::CostCurve(std::vector<Point> points) : points_(std::move(points)) {
  for (auto& point : points_) point = possible(point);
  std::stable_sort(points_.begin(), points_.end(), [](auto& a, auto& b) { return a.bytes < b.bytes; });
  const auto end = std::unique(points_.begin(), points_.end(), [](auto& a, auto& b) { return a.bytes == b.bytes; });
  points_.erase(end, points_.end());
}

int32_t CostCurve::at(int64_t bytes) const {
  if (points_.empty()) return std::numeric_limits<int32_t>::max();
  if (bytes <= points_.front().bytes) return points_.front().cost;
  const auto above = std::lower_bound(points_.begin(), points_.end(), bytes,
                                      [](const Point& point, int64_t size) { return point.bytes < size; });
  const int32_t place = fixed_log2(bytes);
  if (above == points_.end()) return points_.back().cost + place - fixed_log2(points_.back().bytes);
  const auto& below = *(above - 1);
  const int64_t low = fixed_log2(below.bytes);
  const int64_t width = fixed_log2(above->bytes) - low;
  if (width == 0) return above->cost;
  return static_cast<int32_t>(below.cost + (int64_t{above->cost} - below.cost) * (place - low) / width);
}

void CostCurve::put(Point point) {
  point = possible(point);
  std::erase_if(points_, [&](const Point& old) { return size_class(old.bytes) == size_class(point.bytes); });
  const auto above =
      std::find_if(points_.begin(), points_.end(), [&](const Point& p) { return p.bytes > point.bytes; });
  points_.insert(above, point);
}

std::vector<CostRange> cheapest(std::span<const CostCurve* const> curves) {
  const auto sizes = measured_sizes(curves);
  if (sizes.empty()) return {};
  std::vector<CostRange> ranges = {{0, cheapest_at(curves, sizes.front())}};
  const auto beaten = [&](int64_t bytes) {
    return curves[ranges.back().curve]->at(bytes) - curves[cheapest_at(curves, bytes)]->at(bytes) > kHysteresis;
  };
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    // Between two sizes all curves are lines, so the current one is beaten from some point on, or not at all.
    for (int64_t low = sizes[i - 1]; beaten(sizes[i]);) {
      int64_t high = sizes[i];
      while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (beaten(middle) ? high : low) = middle;
      }
      ranges.push_back({high, cheapest_at(curves, high)});
      low = high;
    }
  }
  return ranges;
}

std::size_t cheapest_overall(std::span<const CostCurve* const> curves) {
  const auto sizes = measured_sizes(curves);
  std::size_t best = curves.size();
  int64_t least = 0;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    if (!curves[i]->known()) continue;
    int64_t sum = 0;
    for (const auto bytes : sizes) sum += curves[i]->at(bytes);
    if (best == curves.size() || sum < least) {
      best = i;
      least = sum;
    }
  }
  return best;
}

}  // namespace mcr
