// SPDX-License-Identifier: Apache-2.0
// The chain of passes: what stands between a valid call and the choice of its backend.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device_times.h"
#include "group/group.h"
#include "runtime/work.h"

namespace mcr {

/// What a pass has made of a call, for the record of an outer pass.
struct Trail {
  int64_t seq = 0;                     // the call's number in its group
  int64_t bytes = -1;                  // its size as tables have it
  bool fused = false;                  // it shares a buffer with others
  const std::string* codec = nullptr;  // a name that lives as long as the process; null: not compressed
  bool timed = false;                  // an outer pass wants to know when a device did it
  std::shared_ptr<DeviceTimes> times;  // that, where a device has been given it
  int64_t sent_bytes = -1;             // what this rank hands to the backend, where it is not what the call has
};

/// A call on its way. It is valid and its lists are one buffer each; what is left to copy out stands in the plan.
struct Passage {
  Group& group;
  Slot* slot;  // the candidate that the caller named; null: the end of the chain chooses, and writes it here
  Call& call;
  Plan& plan;
  bool asynchronous;
  Interrupt interrupt = nullptr;
  Trail trail = {};
};

/// What has become of a call.
struct Outcome {
  std::shared_ptr<Work> work;  // of an asynchronous call, never null
  int source = -1;             // of a blocking receive: the group rank that the message came from
};

/// The rest of the chain. A pass that holds a call may keep it beside Group::chain().
class Next {
 public:
  explicit Next(std::span<const std::shared_ptr<Pass>> rest) : rest_(rest) {}
  Outcome operator()(Passage& passage) const;

 private:
  std::span<const std::shared_ptr<Pass>> rest_;
};

/// One station. handle() is called on the caller's thread, from several threads at once, for every call that moves
/// data or meets; a call without elements does not get here. It may change the passage and call `next`, call `next`
/// later (hold the call: hold() makes its Work), or not at all. `next` uses the call and the plan up.
/// What it decides must be a function of values equal on all ranks, like everything else that shapes a call.
class Pass {
 public:
  virtual ~Pass() = default;
  virtual std::string_view name() const = 0;
  virtual Outcome handle(Passage& passage, const Next& next) = 0;
  /// Lets go the calls that it holds and waits until it holds none; false if the time runs out first. All ranks call it
  /// in the same place of the order of calls, from one thread.
  virtual bool settle(std::chrono::nanoseconds limit) {
    static_cast<void>(limit);
    return true;
  }
};

/// The Work of a call whose backend's part is done later, by `request`, or has been done (null). It takes the plan,
/// with the caller's tensors. The passage must have its slot by now: that one's progress thread polls the Work.
std::shared_ptr<Work> hold(Passage& passage, std::unique_ptr<Request> request);
/// The same with several requests, of an operation that ends at a point of a device's work.
std::shared_ptr<Work> hold(Passage& passage, std::vector<std::unique_ptr<Request>> requests,
                           std::shared_ptr<StreamPoint> point);

/// The call as texts name it: "mpi.all_reduce (group 'default', rank 0 of 2)".
std::string described(const Passage& passage);

/// The Error of a pass, which names the call as all errors do.
Error refusal(const Passage& passage, ErrorCode code, const std::string& text);
/// The same for an error that the call has met; keeps its cause.
Error refusal(const Passage& passage, const Error& error);

}  // namespace mcr
