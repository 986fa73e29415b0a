// SPDX-License-Identifier: Apache-2.0
#include "choose/curve.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "check.h"

using namespace mcr;

namespace {

int32_t cost(double microseconds) { return static_cast<int32_t>(std::lround(std::log2(microseconds * 1000) * 65536)); }

CostCurve curve(const std::vector<std::pair<int64_t, double>>& samples) {
  std::vector<CostCurve::Point> points;
  for (const auto& [bytes, time] : samples) points.push_back({bytes, cost(time)});
  return CostCurve(std::move(points));
}

double time_of(int32_t value) { return std::exp2(value / 65536.0) / 1000; }

bool close(double a, double b) { return std::abs(a / b - 1) < 1e-3; }

}  // namespace

TEST(logarithm_is_right_to_its_last_bit_but_one) {
  for (const int64_t value : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{1000}, int64_t{65537}, int64_t{1} << 40,
                              (int64_t{1} << 62) + 12345}) {
    CHECK(std::abs(fixed_log2(value) - std::log2(static_cast<double>(value)) * 65536) <= 2);
  }
  CHECK(fixed_log2(0) == 0 && fixed_log2(1) == 0);
}

TEST(points_are_met_and_joined_by_straight_lines_in_log_log) {
  const auto made = curve({{64, 1}, {1024, 4}});
  CHECK(close(time_of(made.at(64)), 1) && close(time_of(made.at(1024)), 4));
  CHECK(close(time_of(made.at(256)), 2));    // half way in both logarithms
  CHECK(close(time_of(made.at(4)), 1));      // constant below
  CHECK(close(time_of(made.at(4096)), 16));  // in proportion to the size above
}

TEST(sizes_have_four_classes_per_power_of_two) {
  const std::vector<int64_t> starts = {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 1024, 1280, 1536, 1792, 2048};
  for (const int64_t start : starts) {
    CHECK(start == 0 || size_class(start - 1) + 1 == size_class(start) || start == 4);
    const int64_t next = start < 8 ? start : start + start / 8 - 1;
    CHECK(size_class(next) == size_class(start));
  }
  CHECK(size_class(3) < size_class(4) && size_class(1279) < size_class(1280));
}

// A broken table may have anything.
TEST(points_are_made_possible) {
  constexpr int32_t kHighest = std::numeric_limits<int32_t>::max(), kLowest = std::numeric_limits<int32_t>::min();
  const CostCurve made({{64, 5}, {-7, 3}, {16, 4}, {64, 6}});
  CHECK(made.points().size() == 3 && made.points()[0].bytes == 0 && made.points()[1].bytes == 16);
  CHECK(made.at(0) == 3 && made.at(64) == 5);  // of two points at one size the first
  const CostCurve rising({{4, kLowest}, {64, kHighest}}), falling({{4, kHighest}, {64, kLowest}});
  const std::vector<const CostCurve*> both = {&falling, &rising};
  const auto ranges = cheapest(both);  // no difference overflows
  CHECK(ranges.size() == 2 && ranges[0].curve == 1 && ranges[1].curve == 0);
  CHECK(rising.at(int64_t{1} << 62) > 0 && rising.at(4) == -rising.at(64));
  const CostCurve steep({{0, 3}, {1, 7}, {2, 9}});  // the logarithms of 0 and 1 count as one
  CHECK(steep.at(0) == 3 && steep.at(1) == 7 && steep.at(2) == 9);
}

TEST(a_new_point_replaces_those_of_its_size_class) {
  CostCurve made({{1024, 1}, {1100, 2}, {1280, 3}, {4096, 4}});
  made.put({1200, 9});
  CHECK(made.points().size() == 3 && made.at(1200) == 9 && made.at(1100) == 9 && made.at(1280) == 3);
  made.put({-5, std::numeric_limits<int32_t>::max()});
  CHECK(made.points().size() == 4 && made.points().front().bytes == 0);
  CHECK(made.points().front().cost < std::numeric_limits<int32_t>::max());
}

TEST(the_cheaper_one_is_chosen_from_its_crossing_on) {
  const auto quick = curve({{4, 1}, {65536, 100}});
  const auto wide = curve({{4, 20}, {65536, 21}});
  const std::vector<const CostCurve*> both = {&quick, &wide};
  const auto ranges = cheapest(both);
  CHECK(ranges.size() == 2 && ranges[0].from == 0 && ranges[0].curve == 0 && ranges[1].curve == 1);
  const auto at = ranges[1].from;
  CHECK(quick.at(at) - wide.at(at) > kHysteresis && quick.at(at - 1) - wide.at(at - 1) <= kHysteresis);
}

TEST(a_difference_within_the_hysteresis_changes_nothing) {
  const auto first = curve({{4, 1}, {64, 1}, {1024, 1.015}, {16384, 1}});
  const auto second = curve({{4, 1.01}, {64, 1}, {1024, 1}, {16384, 1.01}});
  const std::vector<const CostCurve*> both = {&first, &second};
  CHECK(cheapest(both).size() == 1);
}

TEST(three_candidates_and_one_that_is_unknown) {
  const CostCurve unknown;
  const auto small = curve({{4, 1}, {1 << 20, 1000}});
  const auto middle = curve({{4, 5}, {1 << 20, 100}});
  const auto large = curve({{4, 50}, {1 << 20, 60}});
  const std::vector<const CostCurve*> all = {&unknown, &large, &middle, &small};
  const auto ranges = cheapest(all);
  CHECK(ranges.size() == 3 && ranges[0].curve == 3 && ranges[1].curve == 2 && ranges[2].curve == 1);
  CHECK(ranges[0].from < ranges[1].from && ranges[1].from < ranges[2].from);
  CHECK(cheapest_overall(all) == 2);
}

// A search from the last measured size on, instead of from the first change, would miss the middle one's range.
TEST(a_range_between_two_measured_sizes) {
  const auto point = [](int64_t bytes, double log2_of_ns) {
    return CostCurve::Point{bytes, static_cast<int32_t>(std::lround(log2_of_ns * 65536))};
  };
  const CostCurve small({point(4, 2), point(1 << 20, 20)}), large({point(4, 10.4), point(1 << 20, 10.4)});
  const CostCurve middle({point(4, 6.1), point(1 << 20, 15.1)});
  const std::vector<const CostCurve*> all = {&small, &middle, &large};
  const auto ranges = cheapest(all);
  CHECK(ranges.size() == 3 && ranges[1].curve == 1 && ranges[2].curve == 2);
  CHECK(ranges[1].from > 1 << 10 && ranges[1].from < ranges[2].from && ranges[2].from < 1 << 11);
}

TEST(of_equal_candidates_the_first_is_chosen) {
  const auto one = curve({{4, 1}, {64, 2}}), other = one;
  const std::vector<const CostCurve*> both = {&one, &other};
  CHECK(cheapest(both).size() == 1 && cheapest(both)[0].curve == 0 && cheapest_overall(both) == 0);
}

TEST(without_measurements_there_is_no_choice) {
  const CostCurve unknown;
  const std::vector<const CostCurve*> none = {&unknown, &unknown};
  CHECK(cheapest(none).empty() && cheapest_overall(none) == 2);
}
