// SPDX-License-Identifier: Apache-2.0
// MPI, any implementation. Compiled once per MPI ABI from this file and never linked to a libmpi: the process finds the
// one that it wants, and the module binds its symbols.
#include <algorithm>
#include <atomic>
#include <string_view>
#include <utility>

#include "backends/mpi/library.h"
#include "plugin/backend.h"

namespace mcr::mpi {
namespace {

/// A started collective.
class Operation : public Request {
 public:
  explicit Operation(const char* name, Vectors vectors = {}) : name_(name), vectors_(std::move(vectors)) {}
  // MPI cannot cancel a collective: one that is destroyed unfinished continues to run.

  MPI_Request* handle() { return &handle_; }

  bool poll() override {
    if (handle_ == MPI_REQUEST_NULL) return true;
    Library::Lock lock;
    if (!Library::get().try_lock(lock)) return false;
    if (!Library::get().running()) return false;  // a thread may still wait while the process ends
    int done = 0;
    MPI_Status status;
    const int code = MPI_Test(&handle_, &done, &status);
    if (code != MPI_SUCCESS) {
      handle_ = MPI_REQUEST_NULL;
      fail(code);
    }
    if (done != 0) complete(status);
    return done != 0;
  }

  virtual void fail(int code) const { check(code, name_); }

 protected:
  virtual void complete(const MPI_Status&) {}
  MPI_Request handle_ = MPI_REQUEST_NULL;

 private:
  const char* name_;
  Vectors vectors_;
};

/// A started send or receive.
class Message final : public Operation {
 public:
  explicit Message(const Call& call)
      : Operation(call.op == Op::send ? "MPI_Isend" : "MPI_Irecv"),
        receives_(call.op == Op::recv),
        dtype_(call.dtype),
        count_(call.out.count) {}
  ~Message() override {
    if (handle_ == MPI_REQUEST_NULL || finalized()) return;
    const auto lock = Library::get().lock();
    withdraw();
  }

  int source() const override { return source_; }

  void fail(int code) const override {
    int kind = MPI_SUCCESS;
    MPI_Error_class(code, &kind);
    if (kind == MPI_ERR_TRUNCATE) throw larger_message(count_, dtype_);
    Operation::fail(code);
  }

 private:
  void complete(const MPI_Status& status) override {
    if (!receives_) return;
    source_ = status.MPI_SOURCE;
    MPI_Count received = 0;
    check(kElements(&status, type_of(dtype_), &received), "MPI_Get_elements");
    if (received == count_) return;
    throw shorter_message(received < 0 ? std::nullopt : std::optional<int64_t>(received), count_, dtype_, source_);
  }

  // A receive must not write to memory that its owner frees. (MPI cannot cancel sends in this way.)
  void withdraw() {
    if (!receives_) return;
    MPI_Cancel(&handle_);
    MPI_Request_free(&handle_);
  }

  bool receives_;
  DType dtype_;
  int64_t count_;
  int source_ = -1;
};

/// Owns a communicator.
class Handle {
 public:
  explicit Handle(MPI_Comm comm) : comm_(comm) {}
  Handle(Handle&& other) noexcept : comm_(other.comm_), owned_(other.owned_.exchange(false)) {}
  Handle& operator=(Handle&&) = delete;
  ~Handle() {
    if (!owned_ || finalized()) return;
    const auto lock = Library::get().lock();
    if (!has_message()) MPI_Comm_free(&comm_);
  }
  MPI_Comm get() const { return comm_; }
  /// Never frees the communicator. Other threads may use it meanwhile.
  void leak() { owned_ = false; }

 private:
  // Of a message that nothing has received, MPICH 5 ends the process when it frees the communicator.
  bool has_message() const {
    int found = 0;
    MPI_Status status{};
    return MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &found, &status) != MPI_SUCCESS || found != 0;
  }

  MPI_Comm comm_;
  std::atomic<bool> owned_{true};
};

class MpiCommunicator : public OpMethods<MpiCommunicator> {
 public:
  /// `internal` is for the runtime's own messages. `variants`: one for each of the forced algorithms, or none.
  MpiCommunicator(Handle user, Handle internal, std::vector<Handle> variants, int rank, int size)
      : user_(std::move(user)),
        internal_(std::move(internal)),
        variants_(std::move(variants)),
        rank_(rank),
        size_(size) {}

  bool supports(const Call& call) const override {
    if (!has(call.op)) return false;
    if (row(call.op).is(kReduces) && (!defined(call.dtype, call.red) || call.red == RedOp::AVG)) return false;
    if (call.device.type != DeviceType::CPU && !library_.takes_device_memory(call)) return false;
    if constexpr (kSmallCounts) return largest_total(call) <= INT_MAX;
    return true;
  }

  std::span<const std::string_view> variants() const override {
    if (!variants_.empty()) return ForcedAlgorithms::kVariants;
    return library_.algorithms().any() ? Algorithms::kVariants : std::span<const std::string_view>{};
  }
  bool varies(const Call& call, int variant) const override {
    if (!variants_.empty()) return library_.forced_algorithms().forces(call, variant);
    return library_.algorithms().switches(call.op);
  }
  bool excludes_threads() const override { return library_.serialized(); }
  bool always_starts() const override { return interruptible_; }
  int largest_tag() const override { return library_.largest_tag(); }

  void broadcast(const Call& call, Lane& lane) {
    post(call, lane, kBroadcast, {}, call.out.data, narrow(call.out.count), type_of(call.dtype), call.root);
  }

  void all_reduce(const Call& call, Lane& lane) {
    post(call, lane, kAllReduce, {}, MPI_IN_PLACE, call.out.data, narrow(call.out.count), type_of(call.dtype),
         op(call));
  }

  void reduce(const Call& call, Lane& lane) {
    const bool root = call.root == rank_;
    void* const from = root ? MPI_IN_PLACE : call.out.data;
    void* const to = root ? call.out.data : nullptr;
    post(call, lane, kReduce, {}, from, to, narrow(call.out.count), type_of(call.dtype), op(call), call.root);
  }

  void all_gather(const Call& call, Lane& lane) {
    const auto type = type_of(call.dtype);
    const auto mine = narrow(call.in.count);
    if (!call.vectored) return post(call, lane, kAllGather, {}, call.in.data, mine, type, call.out.data, mine, type);
    Vectors vectors;
    const auto* counts = vectors.counts(call.out_counts);
    const auto* displs = vectors.displs(call.out_displs);
    post(call, lane, kAllGatherV, std::move(vectors), call.in.data, mine, type, call.out.data, counts, displs, type);
  }

  void reduce_scatter(const Call& call, Lane& lane) {
    const auto type = type_of(call.dtype);
    if (!call.vectored) {
      const auto mine = narrow(call.out.count);
      return post(call, lane, kReduceScatter, {}, call.in.data, call.out.data, mine, type, op(call));
    }
    Vectors vectors;
    const auto* counts = vectors.counts(call.in_counts);
    post(call, lane, kReduceScatterV, std::move(vectors), call.in.data, call.out.data, counts, type, op(call));
  }

  void all_to_all(const Call& call, Lane& lane) {
    const auto type = type_of(call.dtype);
    if (!call.vectored) {
      const auto block = narrow(call.in.count / size_);
      return post(call, lane, kAllToAll, {}, call.in.data, block, type, call.out.data, block, type);
    }
    Vectors vectors;
    const auto* in_counts = vectors.counts(call.in_counts);
    const auto* in_displs = vectors.displs(call.in_displs);
    const auto* out_counts = vectors.counts(call.out_counts);
    const auto* out_displs = vectors.displs(call.out_displs);
    post(call, lane, kAllToAllV, std::move(vectors), call.in.data, in_counts, in_displs, type, call.out.data,
         out_counts, out_displs, type);
  }

  void gather(const Call& call, Lane& lane) {
    const auto type = type_of(call.dtype);
    const auto mine = narrow(call.in.count);
    if (!call.vectored) {
      return post(call, lane, kGather, {}, call.in.data, mine, type, call.out.data, mine, type, call.root);
    }
    Vectors vectors;
    const auto* counts = vectors.counts(call.out_counts);
    const auto* displs = vectors.displs(call.out_displs);
    post(call, lane, kGatherV, std::move(vectors), call.in.data, mine, type, call.out.data, counts, displs, type,
         call.root);
  }

  void scatter(const Call& call, Lane& lane) {
    const auto type = type_of(call.dtype);
    const auto mine = narrow(call.out.count);
    if (!call.vectored) {
      return post(call, lane, kScatter, {}, call.in.data, mine, type, call.out.data, mine, type, call.root);
    }
    Vectors vectors;
    const auto* counts = vectors.counts(call.in_counts);
    const auto* displs = vectors.displs(call.in_displs);
    post(call, lane, kScatterV, std::move(vectors), call.in.data, counts, displs, type, call.out.data, mine, type,
         call.root);
  }

  void barrier(const Call& call, Lane& lane) { post(call, lane, kBarrier, {}); }

  void send(const Call& call, Lane& lane) { message(call, lane, kSend); }
  void recv(const Call& call, Lane& lane) { message(call, lane, kReceive); }

  // Running operations may never end, so freeing could wait forever.
  void abort() noexcept override {
    user_.leak();
    internal_.leak();
    for (auto& each : variants_) each.leak();
  }

 private:
  // Messages are the same in all variants, so that they match.
  MPI_Comm comm(const Call& call) const {
    if (call.internal) return internal_.get();
    if (call.variant == 0 || variants_.empty() || row(call.op).is(kPeer)) return user_.get();
    return variants_[call.variant - std::size_t{1}].get();
  }
  MPI_Op op(const Call& call) const { return library_.op(call.dtype, call.red); }

  /// The total number of elements that a collective handles on one rank, as far as every rank can know it: libraries
  /// with small counts compute with totals internally. The caller's hint may be larger, such as for far displacements.
  int64_t largest_total(const Call& call) const {
    if (row(call.op).is(kPeer)) return 0;
    return std::max(message_elements(call, size_), call.size_hint / size_of(call.dtype));
  }

  /// `args` are the arguments between the routine's name and the communicator; `vectors` holds what they point to.
  template <class Run, class Start, class... Args>
  void post(const Call& call, Lane& lane, const Routine<Run, Start>& routine, Vectors vectors, Args... args) {
    const auto issue = [&](const auto& function, auto... handle) {
      const auto lock = library_.lock();
      const auto algorithm = library_.algorithms().use(call.op, call.variant);
      mpi::check(function(args..., comm(call), handle...), function.name());
    };
    if (lane.blocking()) return issue(routine.run);
    auto operation = std::make_unique<Operation>(routine.start.name(), std::move(vectors));
    issue(routine.start, operation->handle());
    lane.track(std::move(operation));
  }

  // Always started, never MPI_Send or MPI_Recv: other threads need the lock while this one waits for the peer.
  template <class Start>
  void message(const Call& call, Lane& lane, const Start& start) {
    auto message = std::make_unique<Message>(call);
    const int peer = call.root == kAnyRank ? MPI_ANY_SOURCE : call.root;
    {
      const auto lock = library_.lock();
      const Layout layout(call.out.count, call.dtype);
      const int code =
          start(call.out.data, layout.count(), layout.type(), peer, call.tag, comm(call), message->handle());
      if (code != MPI_SUCCESS) message->fail(code);
    }
    lane.track(std::move(message));
  }

  Library& library_ = Library::get();
  const bool interruptible_ = interruptible();
  Handle user_, internal_;
  std::vector<Handle> variants_;
  int rank_, size_;
};

// A handle is an integer in one ABI and a pointer in the other: no other cast makes both.
MPI_Comm from_integer(uintptr_t value) { return (MPI_Comm)value; }  // NOLINT

/// Equal on all ranks and in every run; below every library's largest tag.
int tag_of(std::string_view name) {
  uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return static_cast<int>(hash % 32767);
}

void check_place(const char* what, MPI_Comm comm, int wanted_rank, int least, bool exact) {
  int size = 0;
  int rank = 0;
  check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  if (rank == wanted_rank && (exact ? size == least : size >= least)) return;
  throw Error(ErrorCode::Backend,
              std::string(what) + ": expected rank " + std::to_string(wanted_rank) + " of " +
                  (exact ? "" : "at least ") + std::to_string(least) + ", got rank " + std::to_string(rank) + " of " +
                  std::to_string(size) +
                  (exact || size > 1 ? "" : "; was the program started by no MPI launcher, or by another library's?"));
}

/// A new communicator has the error handler of the one that it was made from: with the program's own, errors may end
/// the process.
void return_errors(MPI_Comm comm) {
  check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MPI_Comm create(const GroupSpec& spec) {
  const auto lock = Library::get().lock();
  const int last = *std::max_element(spec.ranks.begin(), spec.ranks.end());
  check_place("MPI_COMM_WORLD", MPI_COMM_WORLD, spec.ranks[static_cast<std::size_t>(spec.rank)], last + 1, false);
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  int code = MPI_Group_incl(world, spec.size(), spec.ranks.data(), &members);
  MPI_Group_free(&world);
  check(code, "MPI_Group_incl");
  code = MPI_Comm_create_group(MPI_COMM_WORLD, members, tag_of(spec.name), &comm);
  MPI_Group_free(&members);
  check(code, "MPI_Comm_create_group");
  return_errors(comm);
  return comm;
}

/// `variant`: of the forced algorithms. The lock covers the variables too: a communicator that another thread made
/// meanwhile would have other algorithms on this rank than on the others.
Handle duplicate(MPI_Comm from, int variant = 0) {
  const auto lock = Library::get().lock();
  MPI_Comm comm = MPI_COMM_NULL;
  if (variant != 0) Library::get().forced_algorithms().use(variant);
  const int code = MPI_Comm_dup(from, &comm);
  if (variant != 0) Library::get().forced_algorithms().use(0);
  check(code, "MPI_Comm_dup");
  return_errors(comm);
  return Handle(comm);
}

/// A copy of the communicator for each variant that is fixed when a communicator is made.
std::vector<Handle> variants_of(MPI_Comm comm) {
  std::vector<Handle> variants;
  // Calls that are always started have no such variants.
  if (!Library::get().forced_algorithms().any() || interruptible()) return variants;
  for (std::size_t i = 0; i < ForcedAlgorithms::kVariants.size(); ++i) {
    variants.push_back(duplicate(comm, static_cast<int>(i) + 1));
  }
  return variants;
}

class MpiBackend : public Backend {
 public:
  // All ranks must have the same text, so they agree on this too.
  std::string library() const override { return version() + settings(); }

  std::unique_ptr<Communicator> connect(const GroupSpec& spec) override {
    Library::get().start();
    MPI_Comm comm = MPI_COMM_NULL;
    if (spec.existing != 0) {
      comm = from_integer(spec.existing);
      check_place("the given MPI communicator", comm, spec.rank, spec.size(), true);
    } else {
      comm = create(spec);
    }
    Handle user = spec.existing != 0 ? duplicate(comm) : Handle(comm);
    Handle internal = duplicate(user.get());
    auto variants = variants_of(user.get());
    return std::make_unique<MpiCommunicator>(std::move(user), std::move(internal), std::move(variants), spec.rank,
                                             spec.size());
  }

  void shutdown() override { Library::get().stop(); }
};

std::unique_ptr<Backend> make(const std::string& library) {
  Symbol::bind(library);
  return std::make_unique<MpiBackend>();
}

}  // namespace

extern "C" const Plugin mcr_dl_plugin = {kPluginVersion, make};

}  // namespace mcr::mpi
