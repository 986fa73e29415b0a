// SPDX-License-Identifier: Apache-2.0
#include "engine/staging.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/dispatch.h"
#include "engine/flatten.h"
#include "engine/stream_call.h"

namespace mcr {

namespace {

std::byte* at(void* data, int64_t bytes) { return static_cast<std::byte*>(data) + bytes; }

// Which way the memory of a call is copied. The root of a broadcast gets nothing back, for example.
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

// One call: its pieces go through device -> host, library, host -> device, each as soon as it can.
class Staged final : public Issuer {
 public:
  struct Place {
    std::shared_ptr<Group> shadow;
    Slot slot;               // the shadow group's; a copy keeps its communicator
    Stream outward, inward;  // from the device, to the device
    int64_t chunk;           // bytes
    bool direct;             // the library takes device memory
  };

  Staged(Place place, const Passage& passage, std::shared_ptr<StreamPoint> point)
      : place_(std::move(place)),
        call_(passage.call),
        output_(of_output(call_, passage.group.rank())),
        behind_(std::exchange(passage.plan.behind, {})),
        point_(std::move(point)) {
    cut();
    const StreamGuard guard(place_.outward);
    const auto here = take_event(call_.device);
    here->record(point_->caller());
    here->join(place_.outward);
    here->join(place_.inward);
    for (const auto& copy : passage.plan.before) copy(place_.outward);
    if (!place_.direct) bring_out();
    for (auto& piece : pieces_) {
      if (!piece.arrived) piece.arrived = mark(place_.outward);
    }
  }

  bool advance(bool hurried) noexcept override {
    try {
      while (next_ < pieces_.size()) {
        collect();
        auto& piece = pieces_[next_];
        if (!piece.arrived->ready()) return false;
        Plan plan;
        plan.owned = piece.memory;
        Call call = piece.call;
        auto slot = place_.slot;
        piece.work = mcr::start(*place_.shadow, &slot, call, plan);
        if (hurried) piece.work->wait_for(std::chrono::nanoseconds(0));
        ++next_;
      }
    } catch (...) {
      failure_ = current_error();
      pieces_.resize(next_);
    }
    set_issued();
    return true;
  }

  bool finished() override {
    try {
      collect();
      if (failure_) throw Error(*failure_);
      if (returned_ < pieces_.size()) return false;
    } catch (...) {
      point_->record(place_.inward);
      throw;
    }
    const StreamGuard guard(place_.inward);
    for (const auto& copy : behind_) copy(place_.inward);
    point_->record(place_.inward);
    return true;
  }

  int source() const override { return pieces_.empty() || !pieces_[0].work ? -1 : pieces_[0].work->source(); }

 private:
  struct Piece {
    Call call;                    // on host memory, or on the device's if direct
    std::byte* device = nullptr;  // where its output lies
    PooledEvent arrived;
    std::vector<std::shared_ptr<void>> memory;  // the library may use it for longer than this object lives
    std::shared_ptr<Work> work;
  };

  // Brings back what the library is done with, in order.
  void collect() {
    for (; returned_ < next_ && pieces_[returned_].work->poll(); ++returned_) {
      pieces_[returned_].work->rethrow();
      if (output_.to_device && !place_.direct) bring_back(pieces_[returned_]);
    }
  }

  int64_t bytes(int64_t count) const { return count * size_of(call_.dtype); }

  // Pieces of one buffer are calls of their own; what has blocks per rank stays whole, and so do messages, whose two
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

  PooledEvent mark(const Stream& stream) const {
    auto event = take_event(stream.device);
    event->record(stream);
    return event;
  }

  // Host memory in place of the device's, and the copies to it.
  void bring_out() {
    auto& runtime = DeviceRuntime::of(call_.device.type);
    const auto host_copy = [&](Piece& piece, Buffer& buffer, bool copied) {
      if (buffer.data == nullptr || buffer.count == 0) return;
      auto* host = piece.memory.emplace_back(runtime.allocate_pinned(call_.device, bytes(buffer.count))).get();
      if (copied) runtime.copy(host, buffer.data, bytes(buffer.count), CopyKind::ToHost, place_.outward);
      buffer.data = host;
    };
    for (auto& piece : pieces_) {
      piece.call.device = {};
      host_copy(piece, piece.call.in, true);
      host_copy(piece, piece.call.out, output_.to_host);
      Buffer factor{const_cast<void*>(piece.call.factor_data), 1};
      host_copy(piece, factor, true);
      piece.call.factor_data = factor.data;
      piece.arrived = mark(place_.outward);
    }
  }

  // What lies between the blocks of a vectored call's output is not the call's to write.
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
  const Call call_;  // its spans point into the plan, which the Work keeps
  const Direction output_;
  const std::vector<std::function<void(const Stream&)>> behind_;
  const std::shared_ptr<StreamPoint> point_;
  std::vector<Piece> pieces_;
  std::size_t next_ = 0;      // the first piece that is not issued
  std::size_t returned_ = 0;  // the first one that is not back on the device
  std::optional<Error> failure_;
};

}  // namespace

std::shared_ptr<Work> Staging::start(Passage& passage) {
  auto& call = passage.call;
  auto& runtime = DeviceRuntime::of(call.device.type);
  const Stream caller = runtime.current(call.device);
  if (runtime.capturing(caller)) {
    throw Error(ErrorCode::Unsupported, "a graph is being recorded, and the library's work happens on the host");
  }
  auto& streams = passage.slot->backend.streams;
  const auto* slot = shadow_->find(passage.slot->name);
  if (slot == nullptr) throw Error(ErrorCode::NotInitialized, "the group has given up the backend");
  unflatten(call, passage.plan);
  auto point = std::make_shared<StreamPoint>(caller);
  auto staged =
      std::make_shared<Staged>(Staged::Place{shadow_, *slot, streams.lane(call.device, 0), streams.lane(call.device, 1),
                                             chunk_, passage.slot->communicator->supports(call)},
                               passage, point);
  auto sequence = sequence_of(passage);
  sequence->begin(staged);
  std::vector<std::unique_ptr<Request>> requests;
  requests.push_back(request_of(std::move(sequence), std::move(staged)));
  requests.push_back(passed(point));  // the device still copies
  return hold(passage, std::move(requests), std::move(point));
}

// A message waits for its peer alone: others must not wait for it.
std::shared_ptr<Sequence> Staging::sequence_of(const Passage& passage) {
  if (row(passage.call.op).is(kPeer)) return std::make_shared<Sequence>(false);
  const std::lock_guard lock(mutex_);
  auto& sequence = sequences_[passage.slot->backend.name];
  if (sequence == nullptr) sequence = std::make_shared<Sequence>(true);
  return sequence;
}

bool Staging::settle(std::chrono::nanoseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const std::lock_guard lock(mutex_);
  return std::all_of(sequences_.begin(), sequences_.end(), [&](const auto& entry) {
    return entry.second->settle(deadline - std::chrono::steady_clock::now());
  });
}

}  // namespace mcr
