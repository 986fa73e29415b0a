// SPDX-License-Identifier: Apache-2.0
// Cost curves from a table's file or another rank: any points, in any order.
#include "choose/curve.h"

#include "bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace mcr;
  Bytes bytes(data, size);
  std::vector<CostCurve> curves;
  for (int64_t i = bytes.number(0, 4); i > 0; --i) {
    std::vector<CostCurve::Point> points;
    for (int64_t j = bytes.number(0, 6); j > 0; --j) {
      const bool usual = bytes.take<uint8_t>() < 200;
      const int64_t at = usual ? int64_t{1} << bytes.number(0, 40) : bytes.take<int64_t>();
      points.push_back({at, usual ? static_cast<int32_t>(bytes.take<uint16_t>()) * 20 : bytes.take<int32_t>()});
    }
    curves.emplace_back(std::move(points));
  }
  if (!curves.empty() && bytes.take<uint8_t>() < 128) curves[0].put({bytes.number(0, 60000), bytes.take<int32_t>()});
  std::vector<const CostCurve*> compared;
  for (const auto& curve : curves) {
    compared.push_back(&curve);
    const auto& points = curve.points();
    for (std::size_t i = 1; i < points.size(); ++i) PROMISE(points[i - 1].bytes < points[i].bytes);
    for (const auto& point : points) PROMISE(curve.at(point.bytes) == point.cost || points.front().bytes == 0);
    (void)curve.at(bytes.take<int64_t>());
  }
  int64_t last = -1;
  for (const auto& range : cheapest(compared)) {
    PROMISE(range.from > last && range.curve < curves.size() && curves[range.curve].known());
    last = range.from;
  }
  PROMISE(cheapest_overall(compared) <= curves.size());
  return 0;
}
