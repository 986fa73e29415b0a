// SPDX-License-Identifier: Apache-2.0
// How a profiler outside the core is told what a backend is given.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/ops.h"

namespace mcr {

class Profiler {
 public:
  /// A call under way; it ends with this object, on the same thread.
  class Span {
   public:
    virtual ~Span() = default;
  };

  virtual ~Profiler() = default;
  /// Null while nobody profiles.
  virtual std::unique_ptr<Span> begin(Op op, const std::string& backend) = 0;

  /// From now on all calls are told to `profiler`, which lives as long as the process.
  static void install(Profiler& profiler) { installed_.store(&profiler, std::memory_order_release); }
  static std::unique_ptr<Span> span(Op op, const std::string& backend) {
    auto* profiler = installed_.load(std::memory_order_acquire);
    return profiler == nullptr ? nullptr : profiler->begin(op, backend);
  }

 private:
  static std::atomic<Profiler*> installed_;  // not inline: the bindings, with hidden symbols, would have their own
};

}  // namespace mcr
