// SPDX-License-Identifier: Apache-2.0
// Any torch.distributed backend as a backend of the core. Python makes the c10d::Backend; connect() gets its address.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <new>
#include <numeric>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "backends/c10d/hosts.h"
#include "backends/c10d/types.h"
#include "backends/c10d/waiters.h"
#include "base/process.h"
#include "base/reduce.h"
#include "plugin/backend.h"

namespace mcr {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

using TorchWork = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;
using c10d_types::data_view;
using c10d_types::reduction_view;
using c10d_types::View;

// torch's libraries match messages by sender and tag: emulated operations use a tag that users may not use.
constexpr int kInternalTag = 1 << 30;

// When a wait for a message times out, gloo closes all of the group's connections; the core's own timeouts do not.
constexpr milliseconds kForever = std::chrono::hours(24 * 365);

// How long connect() waits before it asks whether the group has lost a rank, and a message for a thread.
constexpr milliseconds kLook{20};

// ---- Errors

[[noreturn]] void fail(const std::string& text) {
  const auto says = [&](std::string_view words) { return text.find(words) != std::string::npos; };
  if (says("does not support") || says("does not implement")) throw Error(ErrorCode::Unsupported, text);
  if (says("imed out") || says("imeout"))
    throw Error(ErrorCode::Timeout, "timed out after a timeout of the library: " + text);
  throw Error(ErrorCode::Backend, text);
}

// Calls torch and turns its exceptions into Error.
template <class Action>
auto guarded(Action action) {
  try {
    return action();
  } catch (const c10::NotImplementedError& error) {
    throw Error(ErrorCode::Unsupported, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    fail(error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

void finish(c10d::Work& work, milliseconds limit = kNoTimeout) {
  if (guarded([&] { return work.wait(limit); })) return;
  throw Error(ErrorCode::Backend, "expected a complete operation, got one that torch has aborted");
}

// ---- Buffers as torch's tensors

at::Tensor tensor(const Buffer& buffer, View view) {
  return at::from_blob(buffer.data, {buffer.count * view.factor}, at::TensorOptions(view.type));
}

Tensors blocks(const Buffer& buffer, View view, int size) { return tensor(buffer, view).chunk(size); }

c10d::ReduceOp reduce_op(RedOp red) {
  return c10d::ReduceOp(static_cast<c10d::ReduceOp::RedOpType>(static_cast<uint8_t>(red)));
}

std::vector<int64_t> splits(std::span<const int64_t> counts, View view) {
  std::vector<int64_t> result(counts.begin(), counts.end());
  for (auto& count : result) count *= view.factor;
  return result;
}

int64_t total(const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

// Sets those members of torch's option structs that the Call has a value for.
template <class Options>
Options options(const Call& call) {
  Options result;
  if (call.timeout.count() > 0) result.timeout = call.timeout;
  if constexpr (requires { result.rootRank; }) result.rootRank = call.root;
  if constexpr (requires { result.reduceOp; }) result.reduceOp = reduce_op(call.red);
  return result;
}

// ---- Running operations

// Whether gloo's own threads complete this work. All other works have no operation type, or a message's.
bool tells(const c10d::Work& work) {
  return work.retrieveOpType() != c10d::OpType::UNKNOWN && !c10d::isP2POp(work.retrieveOpType());
}

// The step that follows an operation of the library; may be empty.
using Then = std::function<void()>;

// A work whose isCompleted() is reliable and whose wait() may time out without harm. It ends with the operation: a Work
// that the program keeps keeps neither the library's connections nor scratch memory.
class Polled : public Request {
 public:
  Polled(TorchWork work, Tensors kept, Then then)
      : work_(std::move(work)), kept_(std::move(kept)), then_(std::move(then)) {}

  bool poll() override {
    if (!work_->isCompleted()) return false;
    const auto work = end();
    const auto kept = std::exchange(kept_, {});
    const auto then = std::exchange(then_, nullptr);
    finish(*work);
    if (then) then();
    return true;
  }

  bool block(nanoseconds limit) override {
    const auto work = running();
    if (!work) return true;
    try {
      work->wait(std::max(milliseconds(1), std::chrono::ceil<milliseconds>(limit)));
    } catch (const std::exception&) {
      // The limit has passed or the operation has failed: poll() finds out which.
    }
    return true;
  }

 private:
  TorchWork running() {
    const std::lock_guard lock(mutex_);
    return work_;
  }
  TorchWork end() {
    const std::lock_guard lock(mutex_);
    return std::exchange(work_, {});
  }

  TorchWork work_;  // written under the mutex, only by poll()
  Tensors kept_;
  Then then_;
  std::mutex mutex_;
};

// A work of which only wait() is reliable: gloo's sends and receives end in it. It gets a thread when it is first
// polled: the messages of one emulated call, which are polled one after the other, do not need a thread each.
class Waited : public Request {
 public:
  Waited(TorchWork work, Tensors kept, milliseconds limit, std::shared_ptr<Waiters> waiters, int source, bool any)
      : state_(std::make_shared<State>(std::move(work), std::move(kept), limit, source, any)),
        waiters_(std::move(waiters)) {}

  // The caller's memory may be freed next, so the library has to release it first.
  ~Waited() override {
    if (!started_) return;
    state_->abort();
    state_->sleep(kGrace);
  }

  bool poll() override {
    if (!state_->done()) start();
    if (!state_->done()) return false;
    state_->rethrow();
    return true;
  }

  bool block(nanoseconds limit) override {
    state_->sleep(start() ? limit : std::min<nanoseconds>(limit, kLook));
    return true;
  }

  int source() const override { return state_->source(); }

 private:
  class State {
   public:
    State(TorchWork work, Tensors kept, milliseconds limit, int source, bool any)
        : work_(std::move(work)), kept_(std::move(kept)), limit_(limit), source_(source), any_(any) {}

    void wait() {
      try {
        finish(*work_, limit_);
        if (any_) source_ = guarded([&] { return work_->sourceRank(); });
      } catch (...) {
        error_ = std::current_exception();
      }
      release();
      std::lock_guard lock(mutex_);
      done_ = true;
      changed_.notify_all();
    }

    void abort() {
      try {
        const TorchWork work = running();
        if (work) work->abort();
      } catch (const std::exception&) {
        // Most libraries cannot abort.
      }
    }

    void sleep(nanoseconds limit) {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, limit, [this] { return done_.load(); });
    }

    bool done() const { return done_; }
    int source() const { return source_; }
    void rethrow() const {
      if (error_) std::rethrow_exception(error_);
    }

   private:
    TorchWork running() {
      std::lock_guard lock(mutex_);
      return work_;
    }
    // Destroys the work outside the mutex: the destructor may have to wait for the library.
    void release() {
      TorchWork work;
      std::lock_guard lock(mutex_);
      work.swap(work_);
    }

    TorchWork work_;  // written under the mutex, only by wait()
    const Tensors kept_;
    const milliseconds limit_;
    int source_;                // written before done_
    std::exception_ptr error_;  // written before done_
    std::atomic<bool> done_ = false;
    const bool any_;
    std::mutex mutex_;
    std::condition_variable changed_;
  };

  // False: the system grants no thread now. Later polls try again, as the library does the message anyway.
  bool start() {
    if (started_.exchange(true)) return true;
    try {
      if (waiters_->run([state = state_] { state->wait(); })) return true;
    } catch (const std::bad_alloc&) {
      // As without a thread.
    }
    started_ = false;
    return false;
  }

  std::shared_ptr<State> state_;
  std::shared_ptr<Waiters> waiters_;
  std::atomic<bool> started_ = false;
};

// ---- The communicator

class C10dCommunicator : public OpMethods<C10dCommunicator> {
 public:
  /// Collective for gloo, whose ranks compare their hosts.
  C10dCommunicator(c10::intrusive_ptr<c10d::Backend> backend, const GroupSpec& spec, bool fake)
      : backend_(std::move(backend)),
        gloo_(backend_->getBackendName() == "gloo"),
        fake_(fake),
        exchanges_(gloo_ && exchange_sends_no_more(hosts(spec))) {}
  C10dCommunicator(const C10dCommunicator&) = delete;
  C10dCommunicator& operator=(const C10dCommunicator&) = delete;
  ~C10dCommunicator() override { waiters_->stop(); }

  bool supports(const Call& call) const override {
    if (call.device.type != DeviceType::CPU || !has(call.op)) return false;
    if (call.vectored && call.op != Op::all_to_all) return false;
    return !row(call.op).is(kReduces) || reduction_view(gloo_, call.dtype, call.red);
  }

  bool packed() const override { return true; }
  bool forms_match() const override { return true; }
  int largest_tag() const override { return kInternalTag - 1; }

  void abort() noexcept override {
    try {
      backend_->abort();
    } catch (const std::exception&) {
      // Not every library can abort; its operations then end by their timeouts.
    }
  }

  void broadcast(const Call& call, Lane& lane) {
    Tensors data{tensor(call.out, data_view(call.dtype))};
    const auto opts = options<c10d::BroadcastOptions>(call);
    run(call, lane, data, [&] { return backend_->broadcast(data, opts); });
  }

  void all_reduce(const Call& call, Lane& lane) {
    Tensors data{tensor(call.out, reduced(call))};
    const auto opts = options<c10d::AllreduceOptions>(call);
    run(call, lane, data, [&] { return backend_->allreduce(data, opts); });
  }

  void reduce(const Call& call, Lane& lane) {
    Tensors data{tensor(call.out, reduced(call))};
    // Libraries use the other ranks' buffers for partial results.
    if (call.root != backend_->getRank()) data[0] = data[0].clone();
    const auto opts = options<c10d::ReduceOptions>(call);
    run(call, lane, data, [&] { return backend_->reduce(data, opts); });
  }

  void all_gather(const Call& call, Lane& lane) {
    const View view = data_view(call.dtype);
    Tensors data{tensor(call.out, view), tensor(call.in, view)};
    const auto opts = options<c10d::AllgatherOptions>(call);
    run(call, lane, data, [&] { return backend_->_allgather_base(data[0], data[1], opts); });
  }

  void reduce_scatter(const Call& call, Lane& lane) {
    const View view = reduced(call);
    if (exchanges_) return reduce_scatter_by_exchange(call, lane);
    if (gloo_) return reduce_scatter_by_all_reduce(call, lane, view);
    Tensors data{tensor(call.out, view), tensor(call.in, view)};
    const auto opts = options<c10d::ReduceScatterOptions>(call);
    run(call, lane, data, [&] { return backend_->_reduce_scatter_base(data[0], data[1], opts); });
  }

  void all_to_all(const Call& call, Lane& lane) {
    const View view = data_view(call.dtype);
    auto out_splits = splits(call.out_counts, view);
    auto in_splits = splits(call.in_counts, view);
    Tensors data{tensor(call.out, view), tensor(call.in, view)};
    if (call.vectored) data = {data[0].narrow(0, 0, total(out_splits)), data[1].narrow(0, 0, total(in_splits))};
    const auto opts = options<c10d::AllToAllOptions>(call);
    run(call, lane, data, [&] { return backend_->alltoall_base(data[0], data[1], out_splits, in_splits, opts); });
  }

  void gather(const Call& call, Lane& lane) {
    const View view = data_view(call.dtype);
    Tensors in{tensor(call.in, view)};
    std::vector<Tensors> out;
    if (call.root == backend_->getRank()) out.push_back(blocks(call.out, view, backend_->getSize()));
    const auto opts = options<c10d::GatherOptions>(call);
    run(call, lane, in, [&] { return backend_->gather(out, in, opts); });
  }

  void scatter(const Call& call, Lane& lane) {
    const View view = data_view(call.dtype);
    Tensors out{tensor(call.out, view)};
    std::vector<Tensors> in;
    if (call.root == backend_->getRank()) in.push_back(blocks(call.in, view, backend_->getSize()));
    const auto opts = options<c10d::ScatterOptions>(call);
    run(call, lane, out, [&] { return backend_->scatter(out, in, opts); });
  }

  void barrier(const Call& call, Lane& lane) {
    const auto opts = options<c10d::BarrierOptions>(call);
    run(call, lane, {}, [&] { return backend_->barrier(opts); });
  }

  void send(const Call& call, Lane& lane) {
    Tensors data{tensor(call.out, data_view(call.dtype))};
    const int tag = tag_of(call);
    run(call, lane, data, [&] { return backend_->send(data, call.root, tag); });
  }

  void recv(const Call& call, Lane& lane) {
    Tensors data{tensor(call.out, data_view(call.dtype))};
    // gloo can send an empty message, but cannot receive one from any rank into an empty buffer.
    if (call.out.count == 0) data[0] = at::empty({1}, at::kByte);
    const int tag = tag_of(call);
    run(call, lane, data, [&] {
      return call.root == kAnyRank ? backend_->recvAnysource(data, tag) : backend_->recv(data, call.root, tag);
    });
  }

 private:
  // As torch does for gloo, but torch's Work reports its completion only to a thread in its wait().
  void reduce_scatter_by_all_reduce(const Call& call, Lane& lane, View view) {
    Tensors sum{tensor(call.in, view).clone()};
    const auto opts = options<c10d::AllreduceOptions>(call);
    const int64_t count = call.out.count * view.factor;
    const auto mine = sum[0].narrow(0, backend_->getRank() * count, count);
    const auto copy = [mine, to = call.out.data] { std::memcpy(to, mine.const_data_ptr(), mine.nbytes()); };
    run(call, lane, sum, [&] { return backend_->allreduce(sum, opts); }, copy);
  }

  // Sends half as much as the all_reduce. The rank combines its block in rank order.
  void reduce_scatter_by_exchange(const Call& call, Lane& lane) {
    const View view = data_view(call.dtype);
    Tensors data{at::empty({call.in.count * view.factor}, at::kByte), tensor(call.in, view)};
    const auto combine = [all = data[0], out = call.out, dtype = call.dtype, red = call.red,
                          size = backend_->getSize()] {
      std::vector<const void*> blocks;
      for (const auto& block : all.chunk(size)) blocks.push_back(block.const_data_ptr());
      combine_all(out.data, blocks, out.count, dtype, red);
    };
    const auto opts = options<c10d::AllToAllOptions>(call);
    std::vector<int64_t> equal;
    run(call, lane, data, [&] { return backend_->alltoall_base(data[0], data[1], equal, equal, opts); }, combine);
  }

  // An identifier of each rank's host.
  std::vector<uint64_t> hosts(const GroupSpec& spec) const {
    const auto place = own_place();
    const auto mine = static_cast<int64_t>(std::hash<std::string>()(place.machine + '/' + place.network));
    at::Tensor all = at::empty({spec.size()}, at::kLong), own = at::full({1}, mine, at::kLong);
    Polled gathering(guarded([&] { return backend_->_allgather_base(all, own); }), {all, own}, nullptr);
    while (!gathering.poll()) {
      if (spec.check != nullptr) (*spec.check)();
      gathering.block(kLook);
    }
    const auto* const words = all.const_data_ptr<int64_t>();
    return {words, words + spec.size()};
  }

  View reduced(const Call& call) const {
    const auto view = reduction_view(gloo_, call.dtype, call.red);
    if (view) return *view;
    throw Error(ErrorCode::Unsupported,
                "no " + std::string(name(call.red)) + " of " + std::string(row(call.dtype).name));
  }

  static int tag_of(const Call& call) { return call.internal ? kInternalTag : call.tag; }

  // Starts the operation. The core waits for gloo's operations, so that the loss of a rank, an abort or Ctrl-C ends the
  // wait; a blocking lane ends other libraries' operations here. Waits here have no limit except the library's own,
  // since a library may still be writing to the tensor when wait() times out. gloo's messages have none of their own.
  template <class Start>
  void run(const Call& call, Lane& lane, const Tensors& kept, Start start, const Then& then = nullptr) {
    TorchWork work = guarded(start);
    if (!work) return;  // complete
    if (gloo_ && tells(*work)) return lane.track(std::make_unique<Polled>(std::move(work), kept, then));
    const bool message = gloo_ && row(call.op).is(kPeer);
    const bool any = call.op == Op::recv && call.root == kAnyRank;
    if ((lane.blocking() && !message) || fake_) {
      finish(*work);
      if (then) then();
      if (any) lane.set_source(guarded([&] { return work->sourceRank(); }));
      return;
    }
    const int source = call.op == Op::recv ? call.root : -1;
    lane.track(std::make_unique<Waited>(std::move(work), kept, message ? kForever : kNoTimeout, waiters_, source, any));
  }

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const bool gloo_, fake_;
  const bool exchanges_;  // how gloo, which has no reduce_scatter, does one; equal on all ranks
  const std::shared_ptr<Waiters> waiters_ = std::make_shared<Waiters>();
};

class C10dBackend : public Backend {
 public:
  /// `name`: torch's, of the backend.
  explicit C10dBackend(std::string_view name) : fake_(name == "fake") {}
  std::string library() const override { return "torch " TORCH_VERSION; }
  bool moves_data() const override { return !fake_; }

  std::unique_ptr<Communicator> connect(const GroupSpec& spec) override {
    if (spec.existing == 0) {
      throw Error(ErrorCode::InvalidArgument,
                  "group '" + spec.name + "': expected a backend that torch has made before, got none");
    }
    auto* raw = reinterpret_cast<c10d::Backend*>(spec.existing);  // NOLINT(performance-no-int-to-ptr)
    auto backend = c10::intrusive_ptr<c10d::Backend>::reclaim_copy(raw);
    if (backend->getRank() != spec.rank || backend->getSize() != spec.size()) {
      throw Error(ErrorCode::InvalidArgument, "torch's backend is rank " + std::to_string(backend->getRank()) + " of " +
                                                  std::to_string(backend->getSize()) + ", the group's member is rank " +
                                                  std::to_string(spec.rank) + " of " + std::to_string(spec.size()));
    }
    return std::make_unique<C10dCommunicator>(std::move(backend), spec, fake_);
  }

 private:
  const bool fake_;
};

std::unique_ptr<Backend> create(const std::string& name) { return std::make_unique<C10dBackend>(name); }

}  // namespace

extern "C" const Plugin mcr_dl_plugin = {kPluginVersion, create};

}  // namespace mcr
