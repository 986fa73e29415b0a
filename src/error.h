// SPDX-License-Identifier: Apache-2.0
// One error type. Its code picks the Python exception (one table in bindings/errors.cc), its text is the message.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace mcr {

enum class ErrorCode {
  InvalidArgument,  // a value is wrong: size, count, root, displacement
  InvalidType,      // an object or element type is wrong
  Unsupported,      // the backend has no such operation and no fallback is allowed
  NotInitialized,   // before init, after finalize, or a backend that was not named at init
  Unavailable,      // a backend that cannot be loaded here
  Backend,          // the communication library reported a failure
  Timeout,
  Desync,  // ranks of a group have made different calls, or calls in different orders
};

/// The call that an error is about, for those who look for the reason: a group's label and the call's number in it.
struct Subject {
  std::string label;
  int64_t seq = 0;
  bool message = false;  // a send or receive, whose numbers are this rank's own
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  Error(ErrorCode code, const std::string& text, Subject subject)
      : std::runtime_error(text), code_(code), subject_(std::make_shared<const Subject>(std::move(subject))) {}
  ErrorCode code() const noexcept { return code_; }
  /// Null where the error is about no call that other ranks take part in.
  const Subject* subject() const noexcept { return subject_.get(); }

 private:
  ErrorCode code_;
  std::shared_ptr<const Subject> subject_;  // shared: exceptions are copied, and must not throw then
};

}  // namespace mcr
