// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "plugin/backend.h"
#include "runtime/registry.h"
#include "runtime/striped.h"

namespace mcr {

/// A candidate of a group: a backend's communicator, and the variant to use.
struct Candidate {
  Registry::Entry& backend;
  std::shared_ptr<Communicator> communicator;  // shared with running Works and with the backend's other variants
  const std::string& name;                     // canonical (base/candidate_name.h); owned by the registry
  uint8_t variant = 0;
  std::optional<DeviceType> streams;             // the communicator's, cached
  const StripedCommunicator* striped = nullptr;  // the communicator, if it is striped
  bool always_starts = communicator->always_starts();
};

}  // namespace mcr
