// SPDX-License-Identifier: Apache-2.0
// A group whose backends declare what they have, for tests of the choice among them.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "choose/select.h"
#include "group/group.h"
#include "ranks.h"

namespace choosing {

using namespace mcr;

inline constexpr int kRanks = 4;

// Has no reductions of integers, and a variant for all_reduce.
class Declared : public Communicator {
 public:
  explicit Declared(bool variant) : variant_(variant) {}
  bool supports(const Call& call) const override {
    if (variant_) return call.red != RedOp::AVG;
    return row(call.op).is(kReduces) ? call.dtype == DType::Float : call.op != Op::gather;
  }
  void issue(const Call&, Lane&) override {}
  std::span<const std::string_view> variants() const override {
    return variant_ ? std::span<const std::string_view>(kVariants) : std::span<const std::string_view>();
  }
  bool varies(const Call& call, int /*variant*/) const override { return call.op == Op::all_reduce; }

 private:
  static constexpr std::array<std::string_view, 1> kVariants = {"other"};
  bool variant_;
};

// A group with the candidates one, one:other, two.
class Chooser {
 public:
  explicit Chooser(Tuning tuning = {})
      : one_([] { return std::make_unique<Declared>(true); }, kRanks, 0, "one"),
        two_([] { return std::make_unique<Declared>(false); }, kRanks, 0, "two") {
    one_.group().connect(two_.backend(), 0);
    one_.group().tune(std::move(tuning));
  }
  std::string choose(const Call& call) { return one_.group().choose(call).name; }
  Group& group() { return one_.group(); }

 private:
  ranks::Alone one_, two_;
};

inline Call call(Op op, int64_t count, DType dtype = DType::Float) {
  Call made;
  made.op = op;
  made.dtype = dtype;
  made.in.count = made.out.count = count;
  return made;
}

inline Tuning::Cost line(Op op, const std::string& candidate, int32_t small, int32_t large,
                         DTypeClass types = DTypeClass::Float, bool vectored = false) {
  const CostCurve curve({{4, small * 65536}, {1 << 20, large * 65536}});
  return {{op, vectored, false, DeviceType::CPU, types}, candidate, curve};
}

}  // namespace choosing
