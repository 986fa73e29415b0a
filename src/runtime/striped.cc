// SPDX-License-Identifier: Apache-2.0
#include "runtime/striped.h"

#include <charconv>

#include "base/candidate_name.h"
#include "runtime/composite.h"

namespace mcr {

namespace {

// The shares that are candidates of `auto` without being named.
constexpr std::array<std::string_view, 4> kMeasured = {"25", "33", "67", "75"};

}  // namespace

std::optional<int32_t> StripedCommunicator::share_of(uint8_t variant) {
  if (variant == 0) return std::nullopt;
  return variant * (Stripes::kWhole / 100);
}

uint8_t StripedCommunicator::variant_with(std::string_view percent) {
  uint8_t variant = 0;
  std::from_chars(percent.data(), percent.data() + percent.size(), variant);
  return variant;
}

std::span<const std::string_view> StripedCommunicator::variants() const { return kMeasured; }

bool StripedCommunicator::supports(const Call& call) const {
  return first().supports(call) && (!row(call.op).is(kCuttable) || second().supports(call));
}

void StripedCommunicator::issue(const Call& call, Lane& lane) {
  Call whole = call;
  whole.variant = 0;
  first().issue(whole, lane);
}

void StripedCommunicator::check() {
  for (const auto& part : parts_) part.communicator->check();
}

void StripedCommunicator::abort() noexcept {
  for (const auto& part : parts_) part.communicator->give_up();
}

Registry::Entry& add_striped(const std::string& first, const std::string& second) {
  return CompositeBackend::add(stripe_of(first, second), std::array{first, second},
                               "messages cut over " + first + " and " + second);
}

}  // namespace mcr
