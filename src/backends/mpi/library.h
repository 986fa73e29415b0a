// SPDX-License-Identifier: Apache-2.0
// The process's MPI: its start and end, its lock, and what differs from one MPI to another: widths of counts, element
// types, reductions.
#pragma once

#include <array>
#include <climits>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backends/mpi/abi.h"
#include "backends/mpi/algorithms.h"
#include "base/call.h"
#include "base/error.h"
#include "base/types.h"

namespace mcr::mpi {

/// The two forms of a collective.
template <class Run, class Start>
struct Routine {
  const char* name;
  Run run;
  Start start;
};

// From MPI 4 on, counts have 64 bits and our vectors are passed as they are.
#if MCR_MPI_VERSION >= 4
using Count = MPI_Count;
using Displ = MPI_Aint;
inline constexpr Routine kBroadcast{"MPI_Bcast", MPI_Bcast_c, MPI_Ibcast_c};
inline constexpr Routine kAllReduce{"MPI_Allreduce", MPI_Allreduce_c, MPI_Iallreduce_c};
inline constexpr Routine kReduce{"MPI_Reduce", MPI_Reduce_c, MPI_Ireduce_c};
inline constexpr Routine kAllGather{"MPI_Allgather", MPI_Allgather_c, MPI_Iallgather_c};
inline constexpr Routine kAllGatherV{"MPI_Allgatherv", MPI_Allgatherv_c, MPI_Iallgatherv_c};
inline constexpr Routine kReduceScatter{"MPI_Reduce_scatter_block", MPI_Reduce_scatter_block_c,
                                        MPI_Ireduce_scatter_block_c};
inline constexpr Routine kReduceScatterV{"MPI_Reduce_scatter", MPI_Reduce_scatter_c, MPI_Ireduce_scatter_c};
inline constexpr Routine kAllToAll{"MPI_Alltoall", MPI_Alltoall_c, MPI_Ialltoall_c};
inline constexpr Routine kAllToAllV{"MPI_Alltoallv", MPI_Alltoallv_c, MPI_Ialltoallv_c};
inline constexpr Routine kGather{"MPI_Gather", MPI_Gather_c, MPI_Igather_c};
inline constexpr Routine kGatherV{"MPI_Gatherv", MPI_Gatherv_c, MPI_Igatherv_c};
inline constexpr Routine kScatter{"MPI_Scatter", MPI_Scatter_c, MPI_Iscatter_c};
inline constexpr Routine kScatterV{"MPI_Scatterv", MPI_Scatterv_c, MPI_Iscatterv_c};
inline constexpr auto kSend = MPI_Isend_c;
inline constexpr auto kReceive = MPI_Irecv_c;
inline constexpr auto kCreateOp = MPI_Op_create_c;
inline constexpr auto kElements = MPI_Get_elements_c;
#else
using Count = int;
using Displ = int;
inline constexpr Routine kBroadcast{"MPI_Bcast", MPI_Bcast, MPI_Ibcast};
inline constexpr Routine kAllReduce{"MPI_Allreduce", MPI_Allreduce, MPI_Iallreduce};
inline constexpr Routine kReduce{"MPI_Reduce", MPI_Reduce, MPI_Ireduce};
inline constexpr Routine kAllGather{"MPI_Allgather", MPI_Allgather, MPI_Iallgather};
inline constexpr Routine kAllGatherV{"MPI_Allgatherv", MPI_Allgatherv, MPI_Iallgatherv};
inline constexpr Routine kReduceScatter{"MPI_Reduce_scatter_block", MPI_Reduce_scatter_block,
                                        MPI_Ireduce_scatter_block};
inline constexpr Routine kReduceScatterV{"MPI_Reduce_scatter", MPI_Reduce_scatter, MPI_Ireduce_scatter};
inline constexpr Routine kAllToAll{"MPI_Alltoall", MPI_Alltoall, MPI_Ialltoall};
inline constexpr Routine kAllToAllV{"MPI_Alltoallv", MPI_Alltoallv, MPI_Ialltoallv};
inline constexpr Routine kGather{"MPI_Gather", MPI_Gather, MPI_Igather};
inline constexpr Routine kGatherV{"MPI_Gatherv", MPI_Gatherv, MPI_Igatherv};
inline constexpr Routine kScatter{"MPI_Scatter", MPI_Scatter, MPI_Iscatter};
inline constexpr Routine kScatterV{"MPI_Scatterv", MPI_Scatterv, MPI_Iscatterv};
inline constexpr auto kSend = MPI_Isend;
inline constexpr auto kReceive = MPI_Irecv;
inline constexpr auto kCreateOp = MPI_Op_create;
inline constexpr auto kElements = MPI_Get_elements_x;
#endif
inline constexpr Routine kBarrier{"MPI_Barrier", MPI_Barrier, MPI_Ibarrier};
inline constexpr bool kSmallCounts = sizeof(Count) < sizeof(int64_t);

/// Error(Backend) with the library's text, unless `code` says success.
void check(int code, const char* what);
bool finalized();
/// Name and version of the library: "MPICH 5.0.2".
std::string version();

/// A count as this MPI takes it.
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

/// The counts and displacements of a vectored call as this MPI takes them: the caller's own, or copies.
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

/// The type that moves the elements; floating-point types of 16 and 8 bits are integers to MPI.
MPI_Datatype type_of(DType dtype);

/// Whether type_of() and the reduction make sense together. (On bytes SUM is not the `or` that it is on bools.)
constexpr bool reducible(DType dtype, RedOp red) {
  if (dtype == DType::Bool && (red == RedOp::SUM || red == RedOp::PRODUCT)) return false;
  return defined(dtype, red) && red != RedOp::AVG;
}

/// The buffer of a message as a count and a type; of one element of a type made for it, where the count is too large.
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

/// The process's MPI. There is only one, whoever started it, so this object is never destroyed.
class Library {
 public:
  using Lock = std::unique_lock<std::mutex>;

  static Library& get();

  /// Starts MPI unless that has been done. A collective of all processes of the job.
  void start();
  /// Ends MPI if start() started it.
  void stop();

  /// Held around every call of MPI, where the library allows one thread at a time.
  Lock lock() {
    Lock lock(mutex_, std::defer_lock);
    if (serialized_) lock.lock();
    return lock;
  }
  /// The same without waiting; false where another thread is in MPI.
  bool try_lock(Lock& lock) {
    lock = Lock(mutex_, std::defer_lock);
    return !serialized_ || lock.try_lock();
  }

  bool serialized() const { return serialized_; }

  MPI_Op op(DType dtype, RedOp red) const;

  /// Whether this MPI does a call on a device's memory, with streams of its own. MCR_DL_MPI_STREAMS decides, or the
  /// library's word.
  bool takes_device_memory(const Call& call) const;

  /// Used with the lock held. No variants where there is no lock: a choice and its call must not be separated.
  Algorithms& algorithms() { return algorithms_; }

 private:
  std::mutex mutex_;
  bool serialized_ = true;
  bool device_memory_ = false;
  bool ready_ = false;
  bool ours_ = false;
  Algorithms algorithms_;
  std::array<MPI_Op, 20> own_ops_{};  // as kOwnReductions
};

}  // namespace mcr::mpi
