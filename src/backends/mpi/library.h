// SPDX-License-Identifier: Apache-2.0
// The process's MPI: start and end, lock, and differences between MPI libraries: widths of counts, element types,
// reductions.
#pragma once

#include <array>
#include <atomic>
#include <climits>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backends/mpi/abi.h"
#include "backends/mpi/algorithms.h"
#include "backends/mpi/forced.h"
#include "backends/mpi/thread_lock.h"
#include "base/call.h"
#include "base/error.h"
#include "base/types.h"

namespace mcr::mpi {

/// The blocking and the non-blocking form of a collective.
template <class Run, class Start>
struct Routine {
  const Run& run;
  const Start& start;
};

// From MPI 4 on, counts have 64 bits and the caller's vectors are passed directly.
#if MCR_MPI_VERSION >= 4
using Count = MPI_Count;
using Displ = MPI_Aint;
#define MCR_MPI(name) MPI_##name##_c
inline constexpr auto& kElements = MPI_Get_elements_c;
#else
using Count = int;
using Displ = int;
#define MCR_MPI(name) MPI_##name
inline constexpr auto& kElements = MPI_Get_elements_x;
#endif
inline constexpr Routine kBroadcast{MCR_MPI(Bcast), MCR_MPI(Ibcast)};
inline constexpr Routine kAllReduce{MCR_MPI(Allreduce), MCR_MPI(Iallreduce)};
inline constexpr Routine kReduce{MCR_MPI(Reduce), MCR_MPI(Ireduce)};
inline constexpr Routine kAllGather{MCR_MPI(Allgather), MCR_MPI(Iallgather)};
inline constexpr Routine kAllGatherV{MCR_MPI(Allgatherv), MCR_MPI(Iallgatherv)};
inline constexpr Routine kReduceScatter{MCR_MPI(Reduce_scatter_block), MCR_MPI(Ireduce_scatter_block)};
inline constexpr Routine kReduceScatterV{MCR_MPI(Reduce_scatter), MCR_MPI(Ireduce_scatter)};
inline constexpr Routine kAllToAll{MCR_MPI(Alltoall), MCR_MPI(Ialltoall)};
inline constexpr Routine kAllToAllV{MCR_MPI(Alltoallv), MCR_MPI(Ialltoallv)};
inline constexpr Routine kGather{MCR_MPI(Gather), MCR_MPI(Igather)};
inline constexpr Routine kGatherV{MCR_MPI(Gatherv), MCR_MPI(Igatherv)};
inline constexpr Routine kScatter{MCR_MPI(Scatter), MCR_MPI(Iscatter)};
inline constexpr Routine kScatterV{MCR_MPI(Scatterv), MCR_MPI(Iscatterv)};
inline constexpr Routine kBarrier{MPI_Barrier, MPI_Ibarrier};
inline constexpr auto& kSend = MCR_MPI(Isend);
inline constexpr auto& kReceive = MCR_MPI(Irecv);
inline constexpr auto& kCreateOp = MCR_MPI(Op_create);
#undef MCR_MPI
inline constexpr bool kSmallCounts = sizeof(Count) < sizeof(int64_t);

/// Throws Error(Backend) with the library's text, unless `code` means success.
void check(int code, const char* what);
bool finalized();
/// Name and version of the library: "MPICH 5.0.2".
std::string version();

/// Whether blocking calls are started and polled, so that they can raise while they wait: MCR_DL_MPI_INTERRUPTIBLE.
/// Equal on all ranks, as the blocking and nonblocking forms of MPI do not match each other.
bool interruptible();
/// The settings of this process that must be equal on all ranks: ", interruptible"; empty if all are the usual ones.
std::string settings();

/// A count in this MPI's type.
inline Count narrow(int64_t value) {
  if constexpr (kSmallCounts) {
    if (value > INT_MAX) {
      throw Error(ErrorCode::Unsupported,
                  "this MPI library (version 3 of the standard) takes counts and displacements up to " +
                      std::to_string(INT_MAX) + ", got " + std::to_string(value));
    }
  }
  return static_cast<Count>(value);
}

/// The counts and displacements of a vectored call in this MPI's type: the caller's own, or copies.
class Vectors {
 public:
  const Count* counts(std::span<const int64_t> values) { return as<Count>(values); }
  const Displ* displs(std::span<const int64_t> values) { return as<Displ>(values); }

 private:
  template <class T>
  const T* as(std::span<const int64_t> values) {
    if constexpr (sizeof(T) == sizeof(int64_t)) {
      return reinterpret_cast<const T*>(values.data());
    } else {
      auto& copy = copies_.emplace_back();
      copy.reserve(values.size());
      for (const int64_t value : values) copy.push_back(narrow(value));
      return copy.data();
    }
  }
  std::vector<std::vector<int>> copies_;
};

/// The MPI type that moves the elements; to MPI, floating-point types of 16 and 8 bits are integers.
MPI_Datatype type_of(DType dtype);

/// The buffer of a message as a count and a type. If the count is too large: one element of a type made for the
/// message.
class Layout {
 public:
  Layout(int64_t count, DType dtype);
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  ~Layout();
  Count count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  void make(int64_t count, int64_t bytes);

  MPI_Datatype type_;
  Count count_ = 0;
  bool made_ = false;
};

/// The process's MPI. There is only one, regardless of which code started it, so this object is never destroyed.
class Library {
 public:
  using Lock = std::unique_lock<ThreadLock>;

  static Library& get();

  /// Starts MPI unless it is running. A collective of all processes of the job.
  void start();
  /// Ends MPI if start() started it.
  void stop();

  /// Held around every MPI call if the library allows only one thread at a time.
  Lock lock() {
    Lock lock(mutex_, std::defer_lock);
    if (serialized_) lock.lock();
    return lock;
  }
  /// Like lock(), but does not wait; false if another thread is in MPI.
  bool try_lock(Lock& lock) {
    lock = Lock(mutex_, std::defer_lock);
    return !serialized_ || lock.try_lock();
  }

  bool serialized() const { return serialized_; }
  /// False once stop() has been called.
  bool running() const { return ready_; }

  int largest_tag() const { return largest_tag_; }

  MPI_Op op(DType dtype, RedOp red) const;

  /// Whether this MPI does a call on device memory, with streams of its own. MCR_DL_MPI_STREAMS decides, else the
  /// library's own answer.
  bool takes_device_memory(const Call& call) const;

  /// The library's variants, of one kind or the other. Used with the lock held. Without a lock there are none: a switch
  /// and its call must not be separated.
  Algorithms& algorithms() { return algorithms_; }
  ForcedAlgorithms& forced_algorithms() { return forced_; }

 private:
  void start_variants();
  void stop_variants();

  ThreadLock mutex_;
  bool serialized_ = true;
  bool device_memory_ = false;
  int largest_tag_ = 32767;  // the standard's least limit
  std::atomic<bool> ready_{false};
  bool ours_ = false;
  Algorithms algorithms_;
  ForcedAlgorithms forced_;
  bool tools_ = false;                                             // whether MPI_T was started
  std::array<MPI_Op, kDTypes.size() * kReductions.size()> ops_{};  // by type and reduction
};

}  // namespace mcr::mpi
