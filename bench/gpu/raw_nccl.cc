// SPDX-License-Identifier: Apache-2.0
// The yardstick of bench/gpu/overhead.py: the same NCCL calls from a C++ loop, in the same process, on a communicator
// of their own. Own declarations; NCCL and the driver are bound at run time. Built by raw.py.
#include <dlfcn.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace {

struct UniqueId {
  char internal[128];
};
using Comm = void*;
using CudaStream = void*;
using CudaEvent = void*;

constexpr int kFloat32 = 7;             // ncclFloat32
constexpr int kSum = 0;                 // ncclSum
constexpr unsigned kDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING
constexpr int kAllReduce = 0, kAllGather = 1;

int (*get_unique_id)(UniqueId*);
int (*comm_init_rank)(Comm*, int, UniqueId, int);
int (*comm_destroy)(Comm);
int (*all_reduce)(const void*, void*, std::size_t, int, int, Comm, CudaStream);
int (*all_gather)(const void*, void*, std::size_t, int, Comm, CudaStream);
int (*get_version)(int*);
int (*event_create)(CudaEvent*, unsigned);
int (*event_record)(CudaEvent, CudaStream);
int (*stream_wait_event)(CudaStream, CudaEvent, unsigned);

std::string problem;

template <class Function>
bool bind(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) problem = std::string("no symbol ") + name;
  return function != nullptr;
}

}  // namespace

extern "C" {

const char* raw_problem() { return problem.c_str(); }

// 0, or 1 with a text in raw_problem(). Without a driver (a rehearsal) asynchronous calls have no events.
int raw_open(const char* path) {
  void* nccl = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (nccl == nullptr) {
    problem = dlerror();
    return 1;
  }
  const bool bound = bind(nccl, "ncclGetUniqueId", get_unique_id) && bind(nccl, "ncclCommInitRank", comm_init_rank) &&
                     bind(nccl, "ncclCommDestroy", comm_destroy) && bind(nccl, "ncclAllReduce", all_reduce) &&
                     bind(nccl, "ncclAllGather", all_gather) && bind(nccl, "ncclGetVersion", get_version);
  if (!bound) return 1;
  if (void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (!bind(driver, "cuEventCreate", event_create) || !bind(driver, "cuEventRecord", event_record) ||
        !bind(driver, "cuStreamWaitEvent", stream_wait_event)) {
      return 1;
    }
  }
  return 0;
}

int raw_version() {
  int version = 0;
  get_version(&version);
  return version;
}

int raw_unique_id(char* id) {
  UniqueId made{};
  const int code = get_unique_id(&made);
  std::memcpy(id, made.internal, sizeof(made.internal));
  return code;
}

Comm raw_connect(const char* id, int ranks, int rank) {
  UniqueId given{};
  std::memcpy(given.internal, id, sizeof(given.internal));
  Comm comm = nullptr;
  const int code = comm_init_rank(&comm, ranks, given, rank);
  if (code != 0) problem = "ncclCommInitRank: result " + std::to_string(code);
  return code == 0 ? comm : nullptr;
}

void raw_close(Comm comm) { comm_destroy(comm); }

// Seconds of the host per call, or the negative result of the call that failed. `count`: elements of float32 that the
// rank holds. Not null `side`: each call goes there, behind what `stream` has been given and before what comes after,
// as an asynchronous call that is waited for at once.
double raw_loop(Comm comm, int op, int calls, const void* in, void* out, std::size_t count, CudaStream stream,
                CudaStream side, int asynchronous) {
  static CudaEvent before = nullptr, after = nullptr;
  const bool events = asynchronous != 0 && event_create != nullptr;
  if (events && before == nullptr && event_create(&before, kDisableTiming) != 0) return -1000;
  if (events && after == nullptr && event_create(&after, kDisableTiming) != 0) return -1000;
  const CudaStream where = asynchronous != 0 ? side : stream;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) {
    int code = 0;  // in statements of their own: operands of | have no order
    if (events) code = event_record(before, stream);
    if (events) code |= stream_wait_event(where, before, 0);
    if (op == kAllReduce) code |= all_reduce(out, out, count, kFloat32, kSum, comm, where);
    if (op == kAllGather) code |= all_gather(in, out, count, kFloat32, comm, where);
    if (events) code |= event_record(after, where);
    if (events) code |= stream_wait_event(stream, after, 0);
    if (code != 0) return -code;
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / calls;
}
}
