// SPDX-License-Identifier: Apache-2.0
#include "engine/stream_call.h"

#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/pool.h"
#include "choose/select.h"
#include "device/stream_pool.h"
#include "engine/flatten.h"
#include "engine/wait.h"
#include "observe/activity.h"
#include "observe/position.h"

namespace mcr {

namespace {

using Clock = std::chrono::steady_clock;

// Several lanes only help small messages, which do not fill the links.
constexpr int64_t kSmall = int64_t{256} << 10;

// The lane of the communicator: depends only on values that all ranks know, not on whether the call is blocking.
int lane_of(const Passage& passage) {
  auto& communicator = *passage.candidate->communicator;
  if (communicator.lanes() == 1 || row(passage.call.op).is(kPeer)) return 0;
  const auto bytes = message_bytes(passage.call, passage.group.size());
  return bytes < 0 || bytes > kSmall ? 0 : communicator.next_lane();
}

[[noreturn]] void overdue(Communicator& communicator, std::chrono::milliseconds limit) {
  communicator.give_up();
  throw Error(ErrorCode::Timeout, "timed out: still running after the timeout of " + std::to_string(limit.count()) +
                                      " ms; the backend's communicator of this group has been aborted");
}

// Detects the library's failures, and the timeout, for an operation that no host thread waits for. The Work that polls
// it keeps the communicator until the end, and not longer, although the Watch lives as long as the Work.
class Watch final : public Lingering, public Pooled<Watch> {
 public:
  Watch(std::shared_ptr<StreamPoint> point, Communicator& communicator, std::chrono::milliseconds limit)
      : point_(std::move(point)), communicator_(communicator), limit_(limit), deadline_(Clock::now() + limit) {}

 private:
  bool step() override {
    if (point_->passed()) {
      if (point_->failure()) throw Error(*point_->failure());
      return true;
    }
    communicator_.check();
    if (Clock::now() < deadline_) return false;
    overdue(communicator_, limit_);
  }
  // Even after a failure the device may use the memory until then.
  bool rest() const override { return point_->passed(); }

  std::shared_ptr<StreamPoint> point_;
  Communicator& communicator_;
  std::chrono::milliseconds limit_;
  Clock::time_point deadline_;
};

// Times the operation, if requested and if the device runs it now.
std::shared_ptr<DeviceTimes> timing(Passage& passage, const Stream& stream) {
  if (!passage.notes.timed || stream.device.type == DeviceType::CPU) return nullptr;
  if (DeviceRuntime::of(stream.device.type).capturing(stream)) return nullptr;
  return passage.notes.times = std::make_shared<DeviceTimes>(stream);
}

// Enqueues all but the copies behind the operation. Returns its times, which are not finished; null if it has none.
std::shared_ptr<DeviceTimes> issue_in(Passage& passage, Lane& lane) {
  auto times = timing(passage, lane.stream());
  for (const auto& copy : passage.extras.before) copy(lane.stream());
  mark_sent(passage.notes);
  try {
    passage.candidate->communicator->issue(passage.call, lane);
  } catch (...) {
    rethrow_as_error();
  }
  unflatten(passage.call, passage.extras);
  return times;
}

// After a failure. The caller's stream protects memory that the call's copies may still use.
void join_copies(const Stream& caller, const Stream& lane) {
  StreamPoint end(caller);
  end.follow(caller, lane);
}

void enqueue(Passage& passage, Lane& lane) {
  const auto times = issue_in(passage, lane);
  for (const auto& copy : passage.extras.behind) copy(lane.stream());
  if (times != nullptr) times->finish(lane.stream());
}

// Keeps a call in the device's launch order.
class Launch {
 public:
  /// `caller`: the stream that tells whether a graph is being captured; `stream`: the one that the call runs on.
  Launch(const Passage& passage, const Stream& caller, const Stream& stream)
      : order_(LaunchOrder::of(stream.device)),
        lock_(order_.lock()),
        chained_(!passage.candidate->communicator->keeps_launch_order() &&
                 !DeviceRuntime::of(stream.device.type).capturing(caller)) {
    if (chained_) order_.join_last(stream);
  }
  void done(const Stream& stream) {
    if (chained_) order_.note_last(stream);
  }

 private:
  LaunchOrder& order_;
  std::unique_lock<std::recursive_mutex> lock_;
  bool chained_;
};

std::unique_ptr<Request> request_of(const Passage& passage, const std::shared_ptr<StreamPoint>& point) {
  if (point->captured()) return nullptr;  // complete when the graph is replayed, which is not visible here
  return std::make_unique<Watch>(point, *passage.candidate->communicator, passage.call.timeout);
}

Stream stream_of(const Passage& passage, int lane) {
  const auto& candidate = *passage.candidate;
  return candidate.backend.streams.lane(passage.call.device, candidate.communicator->first_stream() + lane);
}

}  // namespace

// ---- Batches

namespace {

// One communicator's calls in a batch.
class Member {
 public:
  explicit Member(const Passage& passage)
      : communicator_(passage.candidate->communicator),
        caller_(DeviceRuntime::of(passage.call.device.type).current(passage.call.device)),
        lane_(stream_of(passage, 0)),
        launch_(passage, caller_, lane_.stream()),
        point_(make_pooled<StreamPoint>(caller_)) {
    communicator_->begin_batch();
  }

  // The work before this call may be on another stream than that before the first one.
  Enqueued add(Passage& passage) {
    auto& extras = passage.extras;
    const Stream before = DeviceRuntime::of(passage.call.device.type).current(passage.call.device);
    if (!(before == caller_)) extras.release = nullptr;  // which the caller's stream protects
    const StreamGuard guard(lane_.stream());
    point_->follow(lane_.stream(), before);
    try {
      if (auto times = issue_in(passage, lane_)) times_.push_back(std::move(times));
    } catch (...) {
      join_copies(before, lane_.stream());
      throw;
    }
    behind_.insert(behind_.end(), extras.behind.begin(), extras.behind.end());
    return {request_of(passage, point_), point_};
  }

  void start() { communicator_->end_batch(); }

  // After a failure too: Works wait for the event.
  void conclude(const std::optional<Error>& failure) {
    const StreamGuard guard(lane_.stream());
    if (failure) {
      point_->fail(*failure);
    } else {
      for (const auto& copy : behind_) copy(lane_.stream());
    }
    for (const auto& times : times_) times->finish(lane_.stream());
    launch_.done(lane_.stream());
    point_->record(lane_.stream());
  }

  const Communicator* communicator() const { return communicator_.get(); }

 private:
  std::shared_ptr<Communicator> communicator_;
  Stream caller_;
  Lane lane_;
  Launch launch_;
  std::shared_ptr<StreamPoint> point_;
  std::vector<std::function<void(const Stream&)>> behind_;
  std::vector<std::shared_ptr<DeviceTimes>> times_;
};

// The calls of one thread that start together.
class Batch {
 public:
  Batch() = default;
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() {
    try {
      end();
    } catch (...) {
      // Errors are reported by end_batch().
    }
  }

  Member& member(const Passage& passage) {
    for (const auto& member : members_) {
      if (member->communicator() == passage.candidate->communicator.get()) return *member;
    }
    const DeviceGuard guard(passage.call.device);
    return *members_.emplace_back(std::make_unique<Member>(passage));
  }

  bool empty() const { return members_.empty(); }

  // Libraries may count their groups per thread and start nothing until the last one ends, so events are recorded after
  // that.
  void end() {
    auto members = std::exchange(members_, {});
    std::optional<Error> failure;
    for (auto member = members.rbegin(); member != members.rend(); ++member) {
      try {
        (*member)->start();
      } catch (...) {
        failure = current_error();
      }
    }
    for (auto& member : members) member->conclude(failure);
    while (!members.empty()) members.pop_back();
    if (failure) throw Error(*failure);
  }

 private:
  std::vector<std::unique_ptr<Member>> members_;
};

thread_local std::unique_ptr<Batch> batch;

}  // namespace

void begin_batch() {
  if (batch != nullptr) {
    throw Error(
        ErrorCode::InvalidArgument,
        "expected no batch or coalescing block of this thread around this one, got one inside another: start the "
        "messages before or after it");
  }
  batch = std::make_unique<Batch>();
}

void end_batch() {
  if (const auto ended = std::move(batch)) ended->end();
}

// ---- Calls

void run_on_stream(Passage& passage) {
  auto& call = passage.call;
  if (batch != nullptr && !batch->empty()) {
    throw Error(ErrorCode::InvalidArgument,
                "expected asynchronous calls in a batch, which starts them when it ends, got a blocking one");
  }
  const Stream stream = DeviceRuntime::of(call.device.type).current(call.device);
  {
    const DeviceGuard guard(call.device);
    Launch launch(passage, stream, stream);
    Lane lane(stream, lane_of(passage));
    enqueue(passage, lane);
    launch.done(stream);
  }
  passage.extras.conclude();
  if (call.op != Op::barrier) return;
  StreamPoint met(stream);
  if (met.captured()) return;
  {
    const DeviceGuard guard(call.device);
    met.record(stream);
  }
  const Activity::Polling polling;
  const auto begin = Clock::now();
  auto look = begin;
  while (!met.passed()) {
    passage.candidate->communicator->check();
    const auto now = Clock::now();
    if (now - begin >= call.timeout) overdue(*passage.candidate->communicator, call.timeout);
    if (now >= look) {
      check_wait(passage.group.position(), passage.interrupt);
      look = now + kLookInterval;
    }
    std::this_thread::yield();
  }
}

Enqueued start_on_stream(Passage& passage) {
  if (batch != nullptr) return batch->member(passage).add(passage);
  auto& call = passage.call;
  const Stream caller = DeviceRuntime::of(call.device.type).current(call.device);
  const auto point = make_pooled<StreamPoint>(caller);
  const int index = lane_of(passage);
  Lane lane(stream_of(passage, index), index);
  const StreamGuard guard(lane.stream());
  Launch launch(passage, caller, lane.stream());
  point->follow(lane.stream(), caller);
  try {
    enqueue(passage, lane);
  } catch (...) {
    join_copies(caller, lane.stream());
    throw;
  }
  launch.done(lane.stream());
  point->record(lane.stream());
  return {request_of(passage, point), point};
}

}  // namespace mcr
