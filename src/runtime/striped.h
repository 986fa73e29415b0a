// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "algorithms/stripe.h"
#include "plugin/backend.h"
#include "runtime/registry.h"

namespace mcr {

/// Two communicators of a group as one candidate, such as "stripe(gloo,mpi)": the engine splits messages over them
/// (algorithms/stripe.h). Calls that are not split use the first one. For machines on which each library has a network
/// of its own.
class StripedCommunicator final : public Communicator {
 public:
  struct Part {
    std::string name;  // the backend's
    std::shared_ptr<Communicator> communicator;
  };
  using Parts = std::array<Part, 2>;

  /// Both must be host libraries.
  explicit StripedCommunicator(Parts parts) : parts_(std::move(parts)) {}

  const Parts& parts() const { return parts_; }
  /// The variant with a share of the first part, from its name: any of "1" to "99", a percentage. Those of variants()
  /// are the ones that are measured.
  static uint8_t variant_with(std::string_view percent);
  /// The first part's share, in thousandths, that a variant stands for; nothing if the parts' costs decide.
  static std::optional<int32_t> share_of(uint8_t variant);

  bool supports(const Call& call) const override;
  void issue(const Call& call, Lane& lane) override;
  std::span<const std::string_view> variants() const override;
  bool varies(const Call& call, int /*variant*/) const override { return row(call.op).is(kCuttable); }
  bool always_starts() const override { return true; }
  bool forms_match() const override { return first().forms_match(); }
  int largest_tag() const override { return std::min(first().largest_tag(), second().largest_tag()); }
  bool packed() const override { return first().packed(); }
  int patience() const override { return std::max(first().patience(), second().patience()); }
  void check() override;
  void abort() noexcept override;

 private:
  Communicator& first() const { return *parts_[0].communicator; }
  Communicator& second() const { return *parts_[1].communicator; }

  const Parts parts_;
};

/// The entry "stripe(first,second)".
Registry::Entry& add_striped(const std::string& first, const std::string& second);

}  // namespace mcr
