// SPDX-License-Identifier: Apache-2.0
// The chain of passes, between validation and the choice of the backend.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/device_times.h"
#include "group/group.h"
#include "runtime/work.h"

namespace mcr {

/// The effects of inner passes on a call, for the record of an outer pass.
struct CallNotes {
  int64_t seq = 0;                     // the call's number in its group
  int64_t bytes = -1;                  // the data's size as in tables
  bool fused = false;                  // it shares a buffer with others
  const std::string* codec = nullptr;  // a name that lives as long as the process; null: not compressed
  bool timed = false;                  // an outer pass wants the device's times of the call
  std::shared_ptr<DeviceTimes> times;  // these times, once a device has the call
  int64_t sent_bytes = -1;             // what this rank passes to the backend, if it differs from the call's size
  bool sent = false;                   // a backend may have got a part of the call, or a pass holds the call
  CallNotes* whole = nullptr;          // of the call that this one is a part of, if that is still being made
};

/// Before a backend gets the call.
inline void mark_sent(CallNotes& notes) {
  for (auto* each = &notes; each != nullptr; each = each->whole) each->sent = true;
}

/// A call on its way through the chain. It is valid and each of its lists is one buffer; the extras hold the copies
/// still to be made to the outputs.
struct Passage {
  Group& group;
  Candidate* candidate;  // that the caller named; null: the end of the chain chooses one and sets this
  Call& call;
  Extras& extras;
  bool asynchronous;
  Interrupt interrupt = nullptr;
  CallNotes notes = {};
};

/// The outcome of a call.
struct Outcome {
  std::shared_ptr<Work> work;  // of an asynchronous call; never null
  int source = -1;             // for a blocking receive: the group rank that sent the message
};

/// The rest of the chain with which the call entered. Valid during handle(). A pass that holds a call keeps chain() and
/// from(), and makes a Next of them later.
class Next {
 public:
  explicit Next(const std::shared_ptr<const Chain>& chain, std::size_t from = 0) : chain_(chain), from_(from) {}
  Outcome operator()(Passage& passage) const;
  const std::shared_ptr<const Chain>& chain() const { return chain_; }
  std::size_t from() const { return from_; }

 private:
  const std::shared_ptr<const Chain>& chain_;
  std::size_t from_;
};

/// One pass of the chain. handle() is called concurrently from several threads, for every call that moves data or
/// synchronizes ranks; calls without elements do not get here. The thread is the caller's, or behind a pass that holds
/// calls any thread that issues what is held, and then without the program's locks. It may change the passage and call
/// `next`, call `next` later (holding the call: hold() makes its Work), or not call it. `next` consumes the call and
/// the extras. Its decisions must depend only on values equal on all ranks, like everything else that shapes a call.
class Pass {
 public:
  virtual ~Pass() = default;
  virtual std::string_view name() const = 0;
  virtual Outcome handle(Passage& passage, const Next& next) = 0;
  /// Flushes: issues the held calls and waits until none is held; false if the time runs out first. All ranks call it
  /// at the same point in the order of calls, from one thread.
  virtual bool synchronize(std::chrono::nanoseconds /*limit*/) { return true; }
  /// Whether this rank can no longer agree with the others on the pass's calls. The communicators that the pass uses
  /// may then have calls of some ranks that will never be complete: later passes need others.
  virtual bool broken() const { return false; }
};

/// Makes the Work of a call whose backend part is done later, by `request`, or is already done (null). It takes the
/// extras, with the caller's tensors. The passage's candidate must be set: its progress thread polls the Work. `point`:
/// where the operation ends, if that is in a device's work.
std::shared_ptr<Work> hold(Passage& passage, std::unique_ptr<Request> request,
                           std::shared_ptr<StreamPoint> point = nullptr);

/// The end of a blocking call: waits for its Work, and returns the group rank that sent a received message, else -1.
int wait_for(const Passage& passage, Work& work);

/// Owns the memory of the call's tensors, for a pass that keeps it beyond the call: the program may drop its tensors
/// first. They are then released with the last owner. Before hold().
std::shared_ptr<void> memory_of(Extras& extras);

/// Keeps the communicators of a group that the call uses alive until the end of the scope. Throws refusal() if the
/// group is closed.
Group::Inside stay_in(Group& group, const Passage& passage);

/// The candidate that the program or a rule names for the call; null if there is none.
Candidate* named_candidate(const Passage& passage);

/// The call's name in texts: "mpi.all_reduce (group 'default', rank 0 of 2)".
std::string described(const Passage& passage);

/// Makes an Error that names the call, as all errors do, from one of a pass, or from one that the call got, and keeps
/// its cause.
Error refusal(const Passage& passage, const Error& error);

}  // namespace mcr
