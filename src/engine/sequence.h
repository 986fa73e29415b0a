// SPDX-License-Identifier: Apache-2.0
// Operations of several calls, of which the later ones are issued when the earlier ones have completed.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/continuation.h"
#include "runtime/work.h"

namespace mcr {

/// An operation that has calls to issue. Until it is issued(), one thread at a time uses it: the one that drives its
/// Sequence.
class Issuer {
 public:
  virtual ~Issuer() = default;
  /// Issues what it can; true once nothing is left to issue. It keeps its error for finished(). `hurried`: somebody
  /// waits.
  virtual bool advance(bool hurried) noexcept = 0;
  /// Of an operation that is issued(): true once complete. Throws its error.
  virtual bool finished() = 0;
  virtual int source() const { return -1; }
  bool issued() const { return issued_.load(std::memory_order_acquire); }

 protected:
  void set_issued() { issued_.store(true, std::memory_order_release); }

 private:
  std::atomic<bool> issued_{false};
};

/// A call that is under way, and those that follow it.
class Steps final : public Issuer {
 public:
  /// Issues a call, once the one before it is complete, and returns its Work. One that throws ends the operation.
  using Step = std::function<std::shared_ptr<Work>(const Work& before)>;

  Steps(std::shared_ptr<Work> first, std::vector<Step> rest) : current_(std::move(first)), rest_(std::move(rest)) {}

  bool advance(bool hurried) noexcept override;
  bool finished() override;
  int source() const override { return source_; }

 private:
  std::shared_ptr<Work> current_;
  std::vector<Step> rest_;
  std::size_t next_ = 0;
  int source_ = -1;  // of the first call, if that is a receive
  std::optional<Error> failure_;
};

/// Operations that issue their later calls in the order in which they were begun: those of one are all issued before
/// the first one of the next, whatever completes first. As all ranks begin them in the same order, their calls meet.
class Sequence : public Continuation {
 public:
  /// `ordered`: other ranks need what it has still to issue; false for messages, which only their receiver waits for.
  explicit Sequence(bool ordered) : ordered_(ordered) {}

  void begin(std::shared_ptr<Issuer> issuer);
  /// Issues what can be issued now; returns at once if another thread is doing so. Polling one operation thereby moves
  /// those before it. No lock is held while an operation advances: it may run codecs and users' functions, and other
  /// threads begin operations meanwhile.
  void drive();
  /// The same; a thread waits.
  void hurry() override;

 private:
  const bool ordered_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<Issuer>> waiting_;  // guarded by mutex_; the driver alone takes from it
  bool driven_ = false;                          // guarded by mutex_
  std::atomic<bool> hurried_{false};
};

/// The Request of an operation in a sequence.
std::unique_ptr<Request> request_of(std::shared_ptr<Sequence> sequence, std::shared_ptr<Issuer> issuer);

/// The Request of a call that another Work does.
std::unique_ptr<Request> request_of(std::shared_ptr<Work> work);

}  // namespace mcr
