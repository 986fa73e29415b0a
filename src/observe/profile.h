// SPDX-License-Identifier: Apache-2.0
// Tells a profiler outside the core which calls a backend gets.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/ops.h"

namespace mcr {

class Profiler {
 public:
  /// A running call; ends when this object is destroyed, on the same thread.
  class Span {
   public:
    virtual ~Span() = default;
  };

  virtual ~Profiler() = default;
  /// Null while no profiler records.
  virtual std::unique_ptr<Span> begin(Op op, const std::string& backend) = 0;

  /// Reports all calls from now on to `profiler`, which must live as long as the process.
  static void install(Profiler& profiler) { installed_.store(&profiler, std::memory_order_release); }
  static std::unique_ptr<Span> span(Op op, const std::string& backend) {
    auto* profiler = installed_.load(std::memory_order_acquire);
    return profiler == nullptr ? nullptr : profiler->begin(op, backend);
  }

 private:
  static std::atomic<Profiler*> installed_;  // not inline: the bindings, with hidden symbols, would get a copy
};

}  // namespace mcr
