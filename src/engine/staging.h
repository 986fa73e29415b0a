// SPDX-License-Identifier: Apache-2.0
// Tensors of devices on libraries that take host memory: copies in pinned memory, made and copied back on the backend's
// own streams while the host continues.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "engine/pass.h"
#include "engine/stage.h"

namespace mcr {

/// One per group. The host's part of a call is issued when the copy has arrived: as a late Issue, on the group's
/// stage. Thread-safe.
class Staging {
 public:
  /// Calls on one buffer of more than `chunk` bytes are split into pieces of that size, so that copies and
  /// communication overlap; 0: no splitting. Equal on all ranks.
  Staging(std::shared_ptr<Stage> stage, int64_t chunk) : stage_(std::move(stage)), chunk_(chunk) {}

  /// Starts a call that has its candidate. `direct` (of its Decision): the library gets the device memory itself, once
  /// the device has done its earlier work.
  std::shared_ptr<Work> start(Passage& passage, bool direct);

 private:
  const std::shared_ptr<Stage> stage_;
  const int64_t chunk_;
};

}  // namespace mcr
