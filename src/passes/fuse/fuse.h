// SPDX-License-Identifier: Apache-2.0
// Tensor fusion (MCR-DL paper, section V-E): combines small asynchronous collectives of one kind in one buffer.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/pass.h"
#include "passes/fuse/stream.h"

namespace mcr {

/// Holds small asynchronous all_reduce, broadcast, all_gather and reduce_scatter calls until their buffer is full, one
/// of them has waited long enough, a thread waits for one, or a blocking call comes. All other calls go on at once.
class Fuse : public Pass {
 public:
  /// The fused calls run on `shadow`, a group with the same ranks and candidates but communicators of its own, in an
  /// order on which the ranks agree (FuseStream), through the passes that the shadow has now. `limits` has an entry for
  /// every backend of the group.
  Fuse(std::shared_ptr<Group> shadow, const std::map<std::string, FuseLimits>& limits);

  std::string_view name() const override { return "fuse"; }
  Outcome handle(Passage& passage, const Next& next) override;
  bool synchronize(std::chrono::nanoseconds limit) override;
  bool broken() const override;
  /// Sums over all backends.
  FuseStatistics statistics() const;

 private:
  Candidate* candidate_of(const Passage& passage);

  // The stream that holds the calls of a backend, its limits, and what comes behind this pass.
  struct Holder {
    std::shared_ptr<FuseStream> stream;  // shared with the backends whose calls may go to the same communicator
    FuseRest rest;
    FuseLimits limits;
  };
  std::shared_ptr<Group> shadow_;
  std::vector<std::shared_ptr<FuseStream>> streams_;
  std::map<std::string, Holder, std::less<>> holders_;  // by backend
  int64_t largest_buffer_ = 0;
};

}  // namespace mcr
