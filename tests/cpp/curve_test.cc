// SPDX-License-Identifier: Apache-2.0
#include "choose/curve.h"

#include <cmath>
#include <cstdlib>
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

TEST(without_measurements_there_is_no_choice) {
  const CostCurve unknown;
  const std::vector<const CostCurve*> none = {&unknown, &unknown};
  CHECK(cheapest(none).empty() && cheapest_overall(none) == 2);
}
