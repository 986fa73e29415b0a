// SPDX-License-Identifier: Apache-2.0
// One error type. Its code picks the Python exception (one table in bindings/errors.cc), its text is the message.
#pragma once

#include <stdexcept>
#include <string>

namespace mcr {

enum class ErrorCode {
  InvalidArgument,  // a value is wrong: size, count, root, displacement
  InvalidType,      // an object or element type is wrong
  Unsupported,      // the backend has no such operation and no fallback is allowed
  NotInitialized,   // before init, after finalize, or a backend that was not named at init
  Unavailable,      // a backend that cannot be loaded here
  Backend,          // the communication library reported a failure
  Timeout,
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace mcr
