// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/types.h"

namespace mcr {

/// The encoding losses of the parts of one tensor, to be added the next time. Used by one thread at a time: the
/// caller's for the first phase, the thread that drives the schedule for the second.
struct Residual {
  int64_t count = 0;
  DType dtype = DType::Float;
  std::vector<double> sent;   // for this rank's tensor
  std::vector<double> owned;  // for the part of the result that this rank combines
};

/// The residuals of a group, by the name given in calls.
class Feedback {
 public:
  /// The residual with that name, zero at first. Throws InvalidArgument if its count or type differs.
  std::shared_ptr<Residual> find(const std::string& name, int64_t count, DType dtype, int64_t owned);
  void reset();

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Residual>> residuals_;
};

}  // namespace mcr
