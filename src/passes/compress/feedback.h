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

/// What encoding has lost of the parts of one tensor, to be added the next time. One thread at a time uses it: the
/// caller's for the first phase, the one that drives the sequence for the second.
struct Residual {
  int64_t count = 0;
  DType dtype = DType::Float;
  std::vector<double> sent;   // of this rank's tensor
  std::vector<double> owned;  // of the part of the result that this rank combines
};

/// The residuals of a group, by the name that the calls give.
class Feedback {
 public:
  /// The residual of that name, zero at first. Throws InvalidArgument if it is of another count or type.
  std::shared_ptr<Residual> find(const std::string& name, int64_t count, DType dtype, int64_t owned);
  void reset();

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Residual>> residuals_;
};

}  // namespace mcr
