// SPDX-License-Identifier: Apache-2.0
// The process's NCCL: declarations of the functions used, bound at run time. Building this needs neither CUDA nor NCCL.
// Values and signatures are those of nccl.h, which NCCL keeps from version to version.
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/types.h"

namespace mcr::nccl {

struct NativeComm;  // the target of an ncclComm_t
using Comm = NativeComm*;

struct UniqueId {
  std::array<char, 128> bytes;
};

enum class Result : int { Success = 0, InProgress = 7 };

enum class Type : int {
  Int8,
  Uint8,
  Int32,
  Uint32,
  Int64,
  Uint64,
  Float16,
  Float32,
  Float64,
  Bfloat16,
  Float8e4m3,  // this one and the next: from 2.24 on
  Float8e5m2
};

// Not limited to these values: NCCL numbers the operators that a program makes from 5 up.
enum class Operator : int { Sum, Prod, Max, Min, Avg };

enum class Residence : int { Device, HostImmediate };

/// ncclConfig_t of 2.27: newer libraries accept it, older ones take its beginning.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 22700;
  int blocking = 1;
  int cga_cluster_size = INT_MIN;  // INT_MIN: not set
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int traffic_class = INT_MIN;
  const char* comm_name = nullptr;  // NCCL keeps the pointer
  int collnet_enable = INT_MIN;
  int cta_policy = INT_MIN;
  int shrink_share = INT_MIN;
  int nvls_ctas = INT_MIN;
};

inline constexpr int kOldestVersion = 21800;
inline constexpr int kNamesVersion = 22700;        // Config::comm_name
inline constexpr int kLaunchOrderVersion = 22600;  // NCCL_LAUNCH_ORDER_IMPLICIT
inline constexpr int kFloat8Version = 22400;

/// "2.28.3" from 22803.
std::string version_text(int code);

class Library;

/// A function of the library that returns a result. Calling it throws Error(Backend) with NCCL's text.
template <class... Args>
class Routine {
 public:
  Routine(Library& library, const char* name, bool needed = true);
  explicit operator bool() const { return function_ != nullptr; }
  const char* name() const { return name_; }
  void operator()(Args... args) const;
  Result quietly(Args... args) const noexcept { return function_(args...); }

 private:
  const Library& library_;
  const char* name_;
  Result (*function_)(Args...);
};

/// All functions of one library. Immutable and thread-safe.
class Library {
  // Declared before the functions, which use them when they are bound.
  const std::string name_;
  void* const handle_;  // never closed: the library's threads may still run
  std::vector<std::string> missing_needed_, missing_optional_;
  const char* (*error_string_)(Result) = nullptr;
  const char* (*last_error_)(Comm) = nullptr;
  int version_ = 0;
  bool stand_in_ = false;

 public:
  /// An empty `path` means the library that the loader finds. Throws Unavailable, saying what is missing or too old.
  explicit Library(const std::string& path);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  int version() const { return version_; }
  /// The test library, which works on host memory.
  bool stand_in() const { return stand_in_; }
  /// The version and missing functions, for people: "NCCL 2.28.3", ...
  std::string text() const;
  /// NCCL's text for a result, with its last error text if there is one.
  std::string describe(Result result, const char* what) const;
  void check(Result result, const char* what) const {
    if (result != Result::Success) [[unlikely]]
      throw Error(ErrorCode::Backend, describe(result, what));
  }

  using Stream = void*;  // a cudaStream_t
  using Count = std::size_t;

  const Routine<int*> get_version{*this, "ncclGetVersion"};
  const Routine<UniqueId*> get_unique_id{*this, "ncclGetUniqueId"};
  const Routine<Comm*, int, UniqueId, int> init_rank{*this, "ncclCommInitRank"};
  const Routine<Comm*, int, UniqueId, int, Config*> init_rank_config{*this, "ncclCommInitRankConfig", false};
  const Routine<Comm> destroy{*this, "ncclCommDestroy"};
  const Routine<Comm> abort{*this, "ncclCommAbort", false};
  const Routine<Comm, Result*> async_error{*this, "ncclCommGetAsyncError"};
  const Routine<> group_start{*this, "ncclGroupStart"};
  const Routine<> group_end{*this, "ncclGroupEnd"};
  const Routine<Operator*, void*, Type, Residence, Comm> create_premul{*this, "ncclRedOpCreatePreMulSum"};
  const Routine<Operator, Comm> destroy_operator{*this, "ncclRedOpDestroy"};
  const Routine<const void*, void*, Count, Type, int, Comm, Stream> broadcast{*this, "ncclBroadcast"};
  const Routine<const void*, void*, Count, Type, Operator, Comm, Stream> all_reduce{*this, "ncclAllReduce"};
  const Routine<const void*, void*, Count, Type, Operator, int, Comm, Stream> reduce{*this, "ncclReduce"};
  const Routine<const void*, void*, Count, Type, Comm, Stream> all_gather{*this, "ncclAllGather"};
  const Routine<const void*, void*, Count, Type, Operator, Comm, Stream> reduce_scatter{*this, "ncclReduceScatter"};
  const Routine<const void*, Count, Type, int, Comm, Stream> send{*this, "ncclSend"};
  const Routine<void*, Count, Type, int, Comm, Stream> recv{*this, "ncclRecv"};
  // From 2.28 on.
  const Routine<const void*, void*, Count, Type, Comm, Stream> all_to_all{*this, "ncclAlltoAll", false};
  const Routine<const void*, void*, Count, Type, int, Comm, Stream> gather{*this, "ncclGather", false};
  const Routine<const void*, void*, Count, Type, int, Comm, Stream> scatter{*this, "ncclScatter", false};

 private:
  template <class...>
  friend class Routine;
  void* bind(const char* name, bool needed);
};

template <class... Args>
Routine<Args...>::Routine(Library& library, const char* name, bool needed)
    : library_(library), name_(name), function_(reinterpret_cast<Result (*)(Args...)>(library.bind(name, needed))) {}

template <class... Args>
void Routine<Args...>::operator()(Args... args) const {
  library_.check(function_(args...), name_);
}

/// From construction to end(), calls are collected; end() starts them together. If the object is destroyed without
/// end(), because a call failed, NCCL starts none of them.
class Group {
 public:
  explicit Group(const Library& library) : library_(library) { library_.group_start(); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    if (!ended_) library_.group_end.quietly();
  }
  void end() {
    ended_ = true;
    library_.group_end();
  }

 private:
  const Library& library_;
  bool ended_ = false;
};

/// Throws Unavailable if the driver is missing or sees no device.
void require_cuda_device();

}  // namespace mcr::nccl
