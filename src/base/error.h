// SPDX-License-Identifier: Apache-2.0
// The one error type. Its code selects the Python exception (the table in bindings/python/errors.cc); its text is the
// exception's text.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <new>
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
  PeerLost,  // the process of another rank has ended
  Desync,    // ranks of a group have made different calls, or calls in different orders
};

/// The call that an error is about, so that the reason can be looked up: the group's label and the call's number in it.
struct Subject {
  std::string label;
  int64_t seq = 0;
  bool message = false;  // a send or receive, which each rank numbers on its own
};

/// Says that a user's function raised, so neither a rank nor a library is at fault. Derived classes hold the exception
/// in the form of its own language, and the bindings raise it again.
class Cause {
 public:
  Cause() = default;
  Cause(const Cause&) = delete;
  Cause& operator=(const Cause&) = delete;
  virtual ~Cause() = default;
};

/// Copies share their text and may be used by several threads. std::runtime_error's copies share theirs too, but by
/// counters inside libstdc++, which TSan does not see.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string text) : text_(std::make_shared<const std::string>(std::move(text))), code_(code) {}
  Error(ErrorCode code, std::string text, Subject subject) : Error(code, std::move(text)) {
    subject_ = std::make_shared<const Subject>(std::move(subject));
  }
  // No moves: what() of an error that has been moved from would have no text.
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  const char* what() const noexcept override { return text_->c_str(); }
  ErrorCode code() const noexcept { return code_; }
  /// Null if the error is not about a call that other ranks take part in.
  const Subject* subject() const noexcept { return subject_.get(); }

  /// This error, marked as raised by a user's function. Errors made from it must pass the cause on.
  Error caused_by(std::shared_ptr<const Cause> cause) const {
    Error copy = *this;
    copy.cause_ = std::move(cause);
    return copy;
  }
  /// Null unless a user's function raised it.
  const std::shared_ptr<const Cause>& cause() const noexcept { return cause_; }

 private:
  // Shared pointers: copying an exception must not throw.
  std::shared_ptr<const std::string> text_;
  ErrorCode code_;
  std::shared_ptr<const Subject> subject_;
  std::shared_ptr<const Cause> cause_;
};

/// Returns the exception in flight as an Error, to be kept for another thread. Call inside a catch block.
inline Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return {ErrorCode::Backend, error.what()};
  } catch (...) {
    return {ErrorCode::Backend, "an exception that is no std::exception"};
  }
}

/// Throws the exception in flight, as an Error unless memory is lacking. Call inside a catch block around the code of a
/// backend, which may throw anything if it is of another package.
[[noreturn]] inline void rethrow_as_error() {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (...) {
    throw current_error();
  }
}

}  // namespace mcr
