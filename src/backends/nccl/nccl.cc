// SPDX-License-Identifier: Apache-2.0
// NVIDIA's NCCL, on the streams of CUDA devices. The library is bound at run time (library.h).
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "backends/nccl/lanes.h"
#include "backends/nccl/library.h"
#include "backends/nccl/types.h"
#include "backends/nccl/watchdog.h"
#include "base/process.h"
#include "base/text.h"
#include "plugin/backend.h"

namespace mcr::nccl {
namespace {

constexpr int kMostLanes = 8;
constexpr std::chrono::seconds kAbortLimit{5};  // at the end of the process
constexpr int64_t kBarrierStride = 256;         // bytes between the lanes' barrier elements

/// The right to issue on one lane.
struct Turn {
  Lanes::Lock lock;
  Comm comm;
  void* stream;
};

class NcclCommunicator : public OpMethods<NcclCommunicator> {
 public:
  /// The lanes own the barriers' memory.
  NcclCommunicator(std::shared_ptr<const Library> library, std::shared_ptr<Lanes> lanes, const GroupSpec& spec,
                   bool keeps_launch_order)
      : library_(std::move(library)),
        lanes_(std::move(lanes)),
        rank_(spec.rank),
        size_(spec.size()),
        keeps_launch_order_(keeps_launch_order) {}
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  // NCCL waits for running operations, and for graphs; at the end of a process it may wait forever.
  ~NcclCommunicator() override {
    if (!process_leaves()) lanes_->close();
  }

  bool supports(const Call& call) const override {
    if (call.device.type != *streams() || !has(call.op)) return false;
    if (call.op == Op::recv && call.root == kAnyRank) return false;
    return !row(call.op).is(kReduces) || reduction_view(call.dtype, call.red, library_->version());
  }

  std::optional<DeviceType> streams() const override {
    return library_->stand_in() ? DeviceType::CPU : DeviceType::CUDA;
  }
  int lanes() const override { return lanes_->size(); }
  bool forms_match() const override { return true; }
  bool keeps_launch_order() const override { return keeps_launch_order_; }

  std::span<const std::string_view> variants() const override { return kVariants; }
  bool varies(const Call& call, int /*variant*/) const override {
    return call.op == Op::all_gather && call.vectored && size_ > 1;
  }

  // NCCL's condition for in-place operations: the buffer is this rank's own block.
  bool takes_in_place(const Call& call) const override {
    if (row(call.op).is(kRooted) && call.root != rank_) return false;
    switch (row(call.op).extent) {
      case Extent::Gather:
        return call.in.data == out_block(call, size_, rank_).data;
      case Extent::Scatter:
        return call.out.data == in_block(call, size_, rank_).data;
      default:
        return false;
    }
  }

  void check() override { lanes_->check(); }
  void abort() noexcept override { lanes_->abort("the communicator has been aborted"); }

  void begin_batch() override {
    auto lock = lanes_->lock();
    library_->group_start();
    lanes_->set_collecting(true);
    batch_ = std::move(lock);
  }
  void end_batch() override {
    const auto lock = std::move(batch_);
    lanes_->set_collecting(false);
    library_->group_end();
  }

  void broadcast(const Call& call, Lane& lane) {
    const Turn turn = take(lane);
    library_->broadcast(call.out.data, call.out.data, bytes(call, call.out), Type::Int8, call.root, turn.comm,
                        turn.stream);
  }

  void all_reduce(const Call& call, Lane& lane) {
    const Turn turn = take(lane);
    const View view = reduced(call);
    const Reduction reduction(*library_, call, view.type, turn.comm, size_);
    library_->all_reduce(call.out.data, call.out.data, elements(call.out.count, view), view.type, reduction.get(),
                         turn.comm, turn.stream);
  }

  void reduce(const Call& call, Lane& lane) {
    const Turn turn = take(lane);
    const View view = reduced(call);
    const Reduction reduction(*library_, call, view.type, turn.comm, size_);
    reduce_to(call.root, call.out.data, call.out.data, elements(call.out.count, view), view, reduction, turn);
  }

  void all_gather(const Call& call, Lane& lane) {
    const Turn turn = take(lane);
    if (!call.vectored) {
      return library_->all_gather(call.in.data, call.out.data, bytes(call, call.in), Type::Int8, turn.comm,
                                  turn.stream);
    }
    if (call.variant != 0) return all_gather_by_broadcasts(call, turn);
    exchange(call, turn, [&](int) { return call.in; }, [&](int rank) { return out_block(call, size_, rank); });
  }

  void reduce_scatter(const Call& call, Lane& lane) {
    const Turn turn = take(lane);
    const View view = reduced(call);
    const Reduction reduction(*library_, call, view.type, turn.comm, size_);
    if (!call.vectored) {
      return library_->reduce_scatter(call.in.data, call.out.data, elements(call.out.count, view), view.type,
                                      reduction.get(), turn.comm, turn.stream);
    }
    Group group(*library_);
    for (int rank = 0; rank < size_; ++rank) {
      const Buffer from = in_block(call, size_, rank);
      if (from.count == 0) continue;
      reduce_to(rank, from.data, call.out.data, elements(from.count, view), view, reduction, turn);
    }
    group.end();
  }

  void all_to_all(const Call& call, Lane& lane) {
    const Turn turn = take(lane);
    if (!call.vectored && library_->all_to_all) {
      return library_->all_to_all(call.in.data, call.out.data, bytes(call, in_block(call, size_, 0)), Type::Int8,
                                  turn.comm, turn.stream);
    }
    exchange(
        call, turn, [&](int rank) { return in_block(call, size_, rank); },
        [&](int rank) { return out_block(call, size_, rank); });
  }

  void gather(const Call& call, Lane& lane) {
    const Turn turn = take(lane);
    if (!call.vectored && library_->gather) {
      return library_->gather(call.in.data, call.out.data, bytes(call, call.in), Type::Int8, call.root, turn.comm,
                              turn.stream);
    }
    const bool root = call.root == rank_;
    exchange(
        call, turn, [&](int rank) { return rank == call.root ? call.in : Buffer{}; },
        [&](int rank) { return root ? out_block(call, size_, rank) : Buffer{}; });
  }

  void scatter(const Call& call, Lane& lane) {
    const Turn turn = take(lane);
    if (!call.vectored && library_->scatter) {
      return library_->scatter(call.in.data, call.out.data, bytes(call, call.out), Type::Int8, call.root, turn.comm,
                               turn.stream);
    }
    const bool root = call.root == rank_;
    exchange(
        call, turn, [&](int rank) { return root ? in_block(call, size_, rank) : Buffer{}; },
        [&](int rank) { return rank == call.root ? call.out : Buffer{}; });
  }

  // NCCL has no barrier: this is an all_reduce whose result is not used.
  void barrier(const Call&, Lane& lane) {
    const Turn turn = take(lane);
    std::byte* const flag = at(lanes_->memory(), kBarrierStride * lane.index());
    library_->all_reduce(flag, flag, 1, Type::Int8, Operator::Sum, turn.comm, turn.stream);
  }

  void send(const Call& call, Lane& lane) {
    if (call.out.count == 0) return lanes_->check();  // as in exchange()
    const Turn turn = take(lane);
    library_->send(call.out.data, bytes(call, call.out), Type::Int8, call.root, turn.comm, turn.stream);
  }

  void recv(const Call& call, Lane& lane) {
    if (call.out.count == 0) return lanes_->check();
    const Turn turn = take(lane);
    library_->recv(call.out.data, bytes(call, call.out), Type::Int8, call.root, turn.comm, turn.stream);
  }

 private:
  static constexpr std::array<std::string_view, 1> kVariants = {"bcast"};

  Turn take(const Lane& lane) { return {lanes_->lock(), lanes_->comm(lane.index()), lane.stream().handle}; }

  static std::size_t bytes(const Call& call, const Buffer& buffer) {
    return static_cast<std::size_t>(buffer.count * size_of(call.dtype));
  }
  static std::size_t elements(int64_t count, View view) { return static_cast<std::size_t>(count * view.factor); }

  /// Sends `give(rank)` to each rank and receives `take(rank)` from it, in messages that start together. Messages
  /// without elements are skipped on both sides, and so is this rank's own block if it is in place.
  template <class Give, class Take>
  void exchange(const Call& call, const Turn& turn, const Give& give, const Take& take) const {
    Group group(*library_);
    for (int rank = 0; rank < size_; ++rank) {
      const Buffer from = give(rank), to = take(rank);
      if (rank == rank_ && from.data == to.data) continue;
      if (from.count != 0) library_->send(from.data, bytes(call, from), Type::Int8, rank, turn.comm, turn.stream);
      if (to.count != 0) library_->recv(to.data, bytes(call, to), Type::Int8, rank, turn.comm, turn.stream);
    }
    group.end();
  }

  View reduced(const Call& call) const {
    if (const auto view = reduction_view(call.dtype, call.red, library_->version())) return *view;
    throw Error(ErrorCode::Unsupported,
                "no " + std::string(name(call.red)) + " of " + std::string(row(call.dtype).name));
  }

  // Only the root has an output.
  void reduce_to(int root, void* from, void* to, std::size_t count, View view, const Reduction& reduction,
                 const Turn& turn) const {
    library_->reduce(from, root == rank_ ? to : nullptr, count, view.type, reduction.get(), root, turn.comm,
                     turn.stream);
  }

  void all_gather_by_broadcasts(const Call& call, const Turn& turn) const {
    Group group(*library_);
    for (int rank = 0; rank < size_; ++rank) {
      const Buffer to = out_block(call, size_, rank);
      if (to.count == 0) continue;
      const void* const from = rank == rank_ ? call.in.data : to.data;
      library_->broadcast(from, to.data, bytes(call, to), Type::Int8, rank, turn.comm, turn.stream);
    }
    group.end();
  }

  const std::shared_ptr<const Library> library_;
  const std::shared_ptr<Lanes> lanes_;
  Lanes::Lock batch_;  // held from begin_batch() to end_batch(), by the calling thread
  const int rank_, size_;
  const bool keeps_launch_order_;
};

// ---- Making communicators

int wanted_lanes() {
  const auto text = value_of_variable("MCR_DL_NCCL_LANES");
  if (text.empty()) return 1;
  const auto lanes = whole_number(text);
  if (lanes && *lanes >= 1 && *lanes <= kMostLanes) return static_cast<int>(*lanes);
  throw Error(ErrorCode::Unavailable, "MCR_DL_NCCL_LANES: expected a number from 1 to " + std::to_string(kMostLanes) +
                                          ", got '" + std::string(text) + "'");
}

constexpr char kIds = '=', kFailure = '!';  // the first rank's answer begins with one of them

std::vector<UniqueId> ids_of(const std::string& answer) {
  const std::string first = "the group's first rank: ";
  if (answer.starts_with(kFailure)) throw Error(ErrorCode::Backend, first + answer.substr(1));
  const std::size_t length = answer.starts_with(kIds) ? answer.size() - 1 : 0;
  if (length == 0 || length % sizeof(UniqueId) != 0) {
    throw Error(ErrorCode::Backend, first + "expected ids of " + std::to_string(sizeof(UniqueId)) + " bytes, got " +
                                        std::to_string(length) + " bytes");
  }
  std::vector<UniqueId> ids(length / sizeof(UniqueId));
  std::memcpy(ids.data(), answer.data() + 1, length);
  return ids;
}

/// One id per lane, made by the group's first rank; its number of lanes applies to all. If it fails, all ranks get its
/// error.
std::vector<UniqueId> agree(const Library& library, const GroupSpec& spec) {
  static constexpr const char* kKey = "ids";
  if (spec.rank != 0) return ids_of(spec.store->get(kKey));
  std::vector<UniqueId> ids;
  try {
    ids.resize(static_cast<std::size_t>(wanted_lanes()));
    for (auto& id : ids) library.get_unique_id(&id);
  } catch (...) {
    if (spec.store != nullptr) spec.store->set(kKey, kFailure + std::string(current_error().what()));
    throw;
  }
  if (spec.size() > 1) {
    std::string answer(1, kIds);
    for (const auto& id : ids) answer.append(id.bytes.data(), id.bytes.size());
    spec.store->set(kKey, answer);
  }
  return ids;
}

/// The memory that barriers sum up. Its values do not matter, but the copy does: the current stream's earlier work may
/// still use memory that the allocator hands out again, and before a copy from memory that is not pinned the driver may
/// synchronize with that stream.
std::shared_ptr<void> make_flags(Device device, int lanes) {
  auto& runtime = DeviceRuntime::of(device.type);
  const std::vector<std::byte> zeros(static_cast<std::size_t>(kBarrierStride * lanes));
  const auto size = static_cast<int64_t>(zeros.size());
  auto flags = runtime.allocate(device, size);
  runtime.copy(flags.get(), zeros.data(), size, CopyKind::ToDevice, runtime.current(device));
  return flags;
}

class NcclBackend : public Backend {
 public:
  explicit NcclBackend(const std::string& path) : library_(std::make_shared<Library>(path)) {
    wanted_lanes();  // reports a wrong number at once
    if (!library_->stand_in()) require_cuda_device();
  }

  std::string library() const override { return library_->text(); }

  std::unique_ptr<Communicator> connect(const GroupSpec& spec) override {
    const bool ordered = order_launches();
    const DeviceGuard guard(library_->stand_in() ? Device{} : spec.device);
    auto lanes = std::make_shared<Lanes>(library_);
    try {
      for (const auto& id : agree(*library_, spec)) lanes->connect(id, spec);
      lanes->own(make_flags(library_->stand_in() ? Device{} : spec.device, lanes->size()));
    } catch (...) {
      lanes->abort("connecting has failed");
      throw;
    }
    watchdog_.watch(lanes);
    return std::make_unique<NcclCommunicator>(library_, std::move(lanes), spec, ordered);
  }

  void shutdown() override {
    watchdog_.stop();
    Lanes::wait_for_aborts(kAbortLimit);
  }

 private:
  /// Makes NCCL start the operations of several communicators in the order in which they were issued, if it can. NCCL
  /// reads the variable once. Returns whether it does so.
  bool order_launches() const {
    constexpr auto kVariable = "NCCL_LAUNCH_ORDER_IMPLICIT";
    if (library_->stand_in()) return true;
    if (library_->version() < kLaunchOrderVersion) return false;
    setenv(kVariable, "1", 0);
    return value_of_variable(kVariable) == "1";
  }

  const std::shared_ptr<const Library> library_;
  Watchdog watchdog_;
};

std::unique_ptr<Backend> make(const std::string& library) { return std::make_unique<NcclBackend>(library); }

}  // namespace

extern "C" const Plugin mcr_dl_plugin = {kPluginVersion, make};

}  // namespace mcr::nccl
