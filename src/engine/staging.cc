// SPDX-License-Identifier: Apache-2.0
#include "engine/staging.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/dispatch.h"
#include "engine/flatten.h"

namespace mcr {

namespace {

// Which way the memory of a call is copied. For example, the root of a broadcast copies nothing back.
struct Direction {
  bool to_host = false;
  bool to_device = false;
};

Direction of_output(const Call& call, int rank) {
  const bool root = call.root == rank;
  switch (call.op) {
    case Op::broadcast:
      return {root, !root};
    case Op::reduce:
      return {true, root};
    case Op::send:
      return {true, false};
    case Op::recv:
      return {false, true};
    case Op::gather:
      return {false, root};
    default:
      return {row(call.op).extent == Extent::Same, true};
  }
}

// The present end of a stream's work. With the stream's device current.
PooledEvent mark(const Stream& stream) {
  auto event = take_event(stream.device);
  event->record(stream);
  return event;
}

// One call: its pieces go device -> host, library, host -> device, each as soon as possible.
class Staged {
 public:
  struct Place {
    Stream outward, inward;  // from the device, to the device
    int64_t chunk;           // bytes
    bool direct;             // the library takes device memory
  };

  Staged(Place place, const Passage& passage)
      : place_(std::move(place)), call_(passage.call), output_(of_output(call_, passage.group.rank())) {
    cut();
  }

  /// Enqueues the copies to the host.
  void begin(const Passage& passage, const Stream& caller) {
    const StreamGuard guard(place_.outward);
    const auto here = take_event(call_.device);
    here->record(caller);
    here->join(place_.outward);
    here->join(place_.inward);
    for (const auto& copy : passage.extras.before) copy(place_.outward);
    if (!place_.direct) bring_out();
    for (auto& piece : pieces_) {
      if (!piece.arrived) piece.arrived = mark(place_.outward);
    }
  }

  /// After an error of the start: waits until no copy uses the call's memory and that of this object.
  void finish() noexcept {
    try {
      const DeviceGuard guard(place_.outward.device);
      const auto copied = mark(place_.outward);
      while (!copied->ready()) std::this_thread::yield();
    } catch (...) {
      // The device has failed, and copies no more. The error that came first is reported.
    }
  }

  /// A wait, an Issue and a copy for each piece. The schedule keeps `self`.
  static void build(const std::shared_ptr<Staged>& self, Schedule& schedule) {
    schedule.own(self);
    for (auto& piece : self->pieces_) {
      const auto arrived = schedule.wait([&piece](bool) { return piece.arrived->ready(); });
      const auto issued = schedule.issue(piece.call, {arrived});
      if (!self->output_.to_device || self->place_.direct) continue;
      schedule.decode({}, [self = self.get(), &piece](Schedule&) { self->bring_back(piece); }, {issued});
    }
  }

 private:
  struct Piece {
    Call call;                    // on host memory, or on device memory if direct
    std::byte* device = nullptr;  // of its output
    PooledEvent arrived;
  };

  int64_t bytes(int64_t count) const { return count * size_of(call_.dtype); }

  // Pieces of one buffer are calls of their own. Calls with blocks per rank stay whole, and so do messages, whose two
  // ends might disagree about the size.
  void cut() {
    const bool divisible = row(call_.op).extent == Extent::Same && !row(call_.op).is(kPeer) && !place_.direct;
    const int64_t most = divisible && place_.chunk > 0 ? std::max<int64_t>(1, place_.chunk / size_of(call_.dtype)) : 0;
    int64_t offset = 0;
    do {
      Piece piece;
      piece.call = call_;
      piece.device = at(call_.out.data, bytes(offset));
      if (most != 0) piece.call.out.count = std::min(most, call_.out.count - offset);
      piece.call.device_idle = place_.direct;
      piece.call.out.data = piece.device;
      offset += piece.call.out.count;
      pieces_.push_back(std::move(piece));
    } while (most != 0 && offset < call_.out.count);
  }

  // Replaces device memory by host memory, and enqueues the copies to it.
  void bring_out() {
    auto& runtime = DeviceRuntime::of(call_.device.type);
    const auto host_copy = [&](Buffer& buffer, bool copied) {
      if (buffer.data == nullptr || buffer.count == 0) return;
      auto* host = memory_.emplace_back(runtime.allocate_pinned(call_.device, bytes(buffer.count))).get();
      if (copied) runtime.copy(host, buffer.data, bytes(buffer.count), CopyKind::ToHost, place_.outward);
      buffer.data = host;
    };
    for (auto& piece : pieces_) {
      piece.call.device = {};
      host_copy(piece.call.in, true);
      host_copy(piece.call.out, output_.to_host);
      Buffer factor{const_cast<void*>(piece.call.factor_data), 1};
      host_copy(factor, true);
      piece.call.factor_data = factor.data;
      piece.arrived = mark(place_.outward);
    }
  }

  // A vectored call must not write between the blocks of its output.
  void bring_back(const Piece& piece) {
    auto& runtime = DeviceRuntime::of(call_.device.type);
    const StreamGuard guard(place_.inward);
    const auto copy = [&](int64_t first, int64_t count) {
      if (count == 0) return;
      runtime.copy(piece.device + bytes(first), at(piece.call.out.data, bytes(first)), bytes(count), CopyKind::ToDevice,
                   place_.inward);
    };
    if (!call_.vectored || call_.out_counts.empty()) return copy(0, piece.call.out.count);
    for (std::size_t i = 0; i < call_.out_counts.size(); ++i) copy(call_.out_displs[i], call_.out_counts[i]);
  }

  const Place place_;
  const Call call_;  // its spans point into the extras, which the Work keeps
  const Direction output_;
  std::vector<Piece> pieces_;
  std::vector<std::shared_ptr<void>> memory_;
};

// The end of a staged call: the stream's work after the last copy. After an error the call has no point, as a thread
// that meets a point does not look for an error that is not kept yet.
class StagedEnd final : public Lingering {
 public:
  StagedEnd(std::unique_ptr<Request> staged, std::vector<std::function<void(const Stream&)>> copies,
            std::shared_ptr<StreamPoint> point, const Stream& inward)
      : staged_(std::move(staged)), copies_(std::move(copies)), point_(std::move(point)), inward_(inward) {}

  void expedite() override { staged_->expedite(); }
  std::string behind() const override { return staged_->behind(); }
  void abandon() override { staged_->abandon(); }
  int source() const override { return staged_->source(); }

 private:
  // Complete when the device no longer uses the memory.
  bool step() override {
    if (point_->recorded()) return point_->passed();
    try {
      if (!staged_->poll()) return false;
      const StreamGuard guard(inward_);
      for (const auto& copy : copies_) copy(inward_);
      point_->record(inward_);
    } catch (...) {
      mark_error();
      throw;
    }
    return point_->passed();
  }
  bool rest() const override {
    if (staged_->lingers()) return false;
    if (after_error_ != nullptr) return after_error_->ready();
    return !point_->recorded() || point_->passed();  // no event: nothing more can be learnt
  }
  void mark_error() noexcept {
    try {
      const DeviceGuard guard(inward_.device);
      after_error_ = mark(inward_);
    } catch (...) {
      // The Work gets the error that came first.
    }
  }

  std::unique_ptr<Request> staged_;
  std::vector<std::function<void(const Stream&)>> copies_;
  std::shared_ptr<StreamPoint> point_;
  Stream inward_;
  PooledEvent after_error_;  // the device's work after an error of the staged call
};

}  // namespace

std::shared_ptr<Work> Staging::start(Passage& passage, bool direct) {
  auto& call = passage.call;
  auto& runtime = DeviceRuntime::of(call.device.type);
  const Stream caller = runtime.current(call.device);
  if (runtime.capturing(caller)) {
    throw Error(ErrorCode::Unsupported, "a graph is being recorded, and the library's work happens on the host");
  }
  auto& streams = passage.candidate->backend.streams;
  unflatten(call, passage.extras);
  const Stream inward = streams.lane(call.device, 1);
  auto point = std::make_shared<StreamPoint>(caller);
  const auto staged =
      std::make_shared<Staged>(Staged::Place{streams.lane(call.device, 0), inward, chunk_, direct}, passage);
  std::unique_ptr<Request> request;
  try {
    staged->begin(passage, caller);
    const auto schedule = Schedule::make();
    Staged::build(staged, *schedule);
    request = stage_->submit(passage, schedule, nullptr, Stage::LateFor::Device);
  } catch (...) {
    staged->finish();
    throw;
  }
  request = std::make_unique<StagedEnd>(std::move(request), passage.extras.behind.take(), point, inward);
  return hold(passage, std::move(request), std::move(point));
}

}  // namespace mcr
