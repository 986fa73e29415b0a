// SPDX-License-Identifier: Apache-2.0
// A stand-in for libnccl that works on host memory between processes of one machine, for tests alone. What NCCL leaves
// undefined it reports: calls of different ranks that do not match, wrong arguments, foreign communicators.
//
// Environment: MCR_STANDIN_VERSION: the version to report (22803). MCR_STANDIN_TIMEOUT_MS: how long a call waits for
// other ranks (20000). MCR_STANDIN_FAIL: failures to inject, see mcr_stand_in_fail().
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "comm.h"
#include "elements.h"

namespace standin {

namespace {

struct UniqueId {
  std::array<char, 128> bytes;
};

int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? otherwise : std::atoi(text);
}

int version() {
  static const int value = number("MCR_STANDIN_VERSION", 22803);
  return value;
}

/// The state that all threads share.
struct Process {
  std::mutex mutex;
  std::map<const void*, std::shared_ptr<Comm>> comms;
  std::string last_error;
  std::string fail_function;  // which function fails, and after how many calls
  int fail_after = 0;
};

Process& process() {
  static Process& shared = *new Process;  // lives until the end: threads may still call
  return shared;
}

void choose_failure(std::string_view text) {
  const std::lock_guard lock(process().mutex);
  const auto colon = text.find(':');
  process().fail_function = text.substr(0, colon);
  process().fail_after = colon == text.npos ? 1 : std::atoi(std::string(text.substr(colon + 1)).c_str());
}

/// Whether this is the call that is to fail.
bool fails(std::string_view function) {
  const std::lock_guard lock(process().mutex);
  if (process().fail_function != function || --process().fail_after != 0) return false;
  process().fail_function.clear();
  process().last_error = "a failure of " + std::string(function) + " that a test has asked for";
  return true;
}

/// The calls between ncclGroupStart and ncclGroupEnd of one thread.
struct Collected {
  int depth = 0;
  int error = Success;
  std::vector<Batch> batches;
};

thread_local Collected collected;

int error(int result, const std::string& text) {
  const std::lock_guard lock(process().mutex);
  process().last_error = text;
  if (collected.depth > 0 && collected.error == Success) collected.error = result;
  return result;
}

std::shared_ptr<Comm> find(const void* handle) {
  const std::lock_guard lock(process().mutex);
  const auto found = process().comms.find(handle);
  return found == process().comms.end() ? nullptr : found->second;
}

Batch& batch_of(const std::shared_ptr<Comm>& comm) {
  for (auto& batch : collected.batches) {
    if (&batch.comm() == comm.get()) return batch;
  }
  return collected.batches.emplace_back(comm);
}

int flush() {
  std::vector<Batch> batches = std::move(collected.batches);
  collected.batches.clear();
  const int result = run(batches, std::chrono::milliseconds(number("MCR_STANDIN_TIMEOUT_MS", 20000)));
  if (result == Success) return result;
  for (const auto& batch : batches) {
    const std::string text = batch.comm().segment.text();
    if (!text.empty()) return error(result, text);
  }
  return error(result, "the communicator has been aborted");
}

/// In a group: collects what `add` adds. Otherwise runs it at once.
template <class Add>
int submit(const char* function, const void* handle, Add add) {
  if (fails(function)) {
    if (collected.depth > 0) collected.error = InternalError;
    return InternalError;
  }
  const auto comm = find(handle);
  if (comm == nullptr) return error(InvalidArgument, std::string(function) + ": comm is not a communicator");
  if (const int failed = comm->segment.failure()) return error(failed, comm->segment.text());
  if (fails("async")) comm->injected = InternalError;
  if (const int wrong = add(comm)) return wrong;
  return collected.depth > 0 ? static_cast<int>(Success) : flush();
}

int wrong(const char* function, const char* what, long long got) {
  return error(InvalidArgument, std::string(function) + ": wrong " + what + " " + std::to_string(got));
}

int check_type(const char* function, int type) {
  const int types = version() >= 22400 ? kTypes : static_cast<int>(Float8e4m3);
  return type < 0 || type >= types ? wrong(function, "data type", type) : static_cast<int>(Success);
}

int check(const char* function, const Comm& comm, const Call& call) {
  if (const int result = check_type(function, call.type)) return result;
  if (call.root < -1 || call.root >= comm.size) return wrong(function, "root", call.root);
  // As NCCL 2.28.
  if (call.op == Avg && call.type >= Float8e4m3 && comm.size == 1) return wrong(function, "data type", call.type);
  const bool gets = (call.function != Reduce && call.function != Gather) || call.root == comm.rank;
  const bool gives = (call.function != Broadcast && call.function != Scatter) || call.root == comm.rank;
  if (call.count != 0 && gives && call.in == nullptr)
    return error(InvalidArgument, std::string(function) + ": sendbuff is null");
  if (call.count != 0 && gets && call.out == nullptr)
    return error(InvalidArgument, std::string(function) + ": recvbuff is null");
  if (call.op < Created) return call.op < -1 ? wrong(function, "op", call.op) : static_cast<int>(Success);
  const auto index = static_cast<std::size_t>(call.op - Created);
  if (index >= comm.factors.size() || comm.factors[index].empty()) return wrong(function, "op", call.op);
  return Success;
}

int collective(const char* name, Function function, const void* in, void* out, std::size_t count, int type, int op,
               int root, const void* handle) {
  return submit(name, handle, [&](const std::shared_ptr<Comm>& comm) {
    const Call call{function, static_cast<const std::byte*>(in), static_cast<std::byte*>(out), count, type, op, root};
    if (const int result = check(name, *comm, call)) return result;
    if (count != 0) batch_of(comm).add(call);
    return static_cast<int>(Success);
  });
}

template <class Add>
int message(const char* name, const void* data, std::size_t count, int type, int peer, const void* handle, Add add) {
  return submit(name, handle, [&](const std::shared_ptr<Comm>& comm) {
    if (const int result = check_type(name, type)) return result;
    if (peer < 0 || peer >= comm->size) return wrong(name, "peer", peer);
    if (count != 0 && data == nullptr) return error(InvalidArgument, std::string(name) + ": the buffer is null");
    add(batch_of(comm), Header{Message, type, -1, -1, count, count * size_of(type)});
    return static_cast<int>(Success);
  });
}

int connect(const char* name, void** comm, int size, const UniqueId& id, int rank) {
  if (fails(name)) return InternalError;
  if (comm == nullptr || size < 1 || rank < 0 || rank >= size) return wrong(name, "rank", rank);
  Place place;
  std::memcpy(&place, id.bytes.data(), sizeof(place));
  try {
    auto made = std::make_shared<Comm>(place, rank, size);
    *comm = made.get();
    const std::lock_guard lock(process().mutex);
    process().comms[made.get()] = std::move(made);
  } catch (const std::runtime_error& problem) {
    return error(SystemError, problem.what());
  }
  return Success;
}

int forget(const char* name, const void* handle, bool abort) {
  if (fails(name)) return InternalError;
  const auto comm = find(handle);
  if (comm == nullptr) return error(InvalidArgument, std::string(name) + ": comm is not a communicator");
  if (abort) {
    comm->aborted = true;
    comm->fail(RemoteError,
               "rank " + std::to_string(comm->rank) + " of " + std::to_string(comm->size) + " has aborted");
  }
  const std::lock_guard lock(process().mutex);
  process().comms.erase(handle);
  return Success;
}

}  // namespace

}  // namespace standin

using namespace standin;

extern "C" {

/// By this symbol the backend knows that it has no real library.
extern const int mcr_dl_stand_in;
const int mcr_dl_stand_in = 1;

/// "ncclAllReduce:3": its third call from now on fails with ncclInternalError. "async:2": the communicator of the
/// second call from now on shows an asynchronous ncclInternalError. "": nothing fails.
void mcr_stand_in_fail(const char* text) { choose_failure(text); }

/// How many communicators there are in this process.
int mcr_stand_in_comms() {
  const std::lock_guard lock(process().mutex);
  return static_cast<int>(process().comms.size());
}

int ncclGetVersion(int* value) {
  *value = version();
  return Success;
}

const char* ncclGetErrorString(int result) {
  constexpr std::array kTexts = {"no error",
                                 "unhandled cuda error",
                                 "unhandled system error",
                                 "internal error",
                                 "invalid argument",
                                 "invalid usage",
                                 "remote process exited or there was a network error",
                                 "NCCL operation in progress"};
  return result >= 0 && result < static_cast<int>(kTexts.size()) ? kTexts[static_cast<std::size_t>(result)]
                                                                 : "unknown result code";
}

int ncclGetUniqueId(UniqueId* id) {
  if (fails("ncclGetUniqueId")) return InternalError;
  try {
    const Place place = Segment::make();
    std::memcpy(id->bytes.data(), &place, sizeof(place));
  } catch (const std::runtime_error& problem) {
    return error(SystemError, problem.what());
  }
  return Success;
}

int ncclCommInitRank(void** comm, int size, UniqueId id, int rank) {
  return connect("ncclCommInitRank", comm, size, id, rank);
}

int ncclCommDestroy(void* comm) { return forget("ncclCommDestroy", comm, false); }
int ncclCommAbort(void* comm) { return forget("ncclCommAbort", comm, true); }

int ncclCommGetAsyncError(void* handle, int* result) {
  const auto comm = find(handle);
  if (comm == nullptr) return error(InvalidArgument, "ncclCommGetAsyncError: comm is not a communicator");
  *result = comm->injected.load();
  if (*result == Success && comm->segment.failure() != 0) {
    *result = comm->segment.failure();
    error(*result, comm->segment.text());
  }
  return Success;
}

int ncclGroupStart() {
  if (fails("ncclGroupStart")) return InternalError;
  ++collected.depth;
  return Success;
}

int ncclGroupEnd() {
  if (collected.depth == 0) return error(InvalidUsage, "ncclGroupEnd: no ncclGroupStart before it");
  if (--collected.depth > 0) return Success;
  const int result = std::exchange(collected.error, Success);
  if (result == Success && !fails("ncclGroupEnd")) return flush();
  collected.batches.clear();
  return result == Success ? static_cast<int>(InternalError) : result;
}

int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, void* handle) {
  const char* const name = "ncclRedOpCreatePreMulSum";
  if (fails(name)) return InternalError;
  const auto comm = find(handle);
  if (comm == nullptr || scalar == nullptr)
    return error(InvalidArgument, std::string(name) + ": comm or scalar is null");
  if (const int result = check_type(name, type)) return result;
  const auto* bytes = static_cast<const std::byte*>(scalar);
  // The first free place.
  std::size_t index = 0;
  while (index < comm->factors.size() && !comm->factors[index].empty()) ++index;
  comm->factors.resize(std::max(comm->factors.size(), index + 1));
  comm->pointers.resize(comm->factors.size());
  comm->factors[index].assign(bytes, bytes + size_of(type));
  comm->pointers[index] = residence == 0 ? scalar : nullptr;
  *op = Created + static_cast<int>(index);
  return Success;
}

int ncclRedOpDestroy(int op, void* handle) {
  const auto comm = find(handle);
  const auto index = static_cast<std::size_t>(op - Created);
  if (comm == nullptr || op < Created || index >= comm->factors.size()) return wrong("ncclRedOpDestroy", "op", op);
  comm->factors[index].clear();
  return Success;
}

int ncclBroadcast(const void* in, void* out, std::size_t count, int type, int root, void* comm, void*) {
  return collective("ncclBroadcast", Broadcast, in, out, count, type, -1, root, comm);
}

int ncclAllReduce(const void* in, void* out, std::size_t count, int type, int op, void* comm, void*) {
  return collective("ncclAllReduce", AllReduce, in, out, count, type, op, -1, comm);
}

int ncclReduce(const void* in, void* out, std::size_t count, int type, int op, int root, void* comm, void*) {
  return collective("ncclReduce", Reduce, in, out, count, type, op, root, comm);
}

int ncclAllGather(const void* in, void* out, std::size_t count, int type, void* comm, void*) {
  return collective("ncclAllGather", AllGather, in, out, count, type, -1, -1, comm);
}

int ncclReduceScatter(const void* in, void* out, std::size_t count, int type, int op, void* comm, void*) {
  return collective("ncclReduceScatter", ReduceScatter, in, out, count, type, op, -1, comm);
}

int ncclSend(const void* data, std::size_t count, int type, int peer, void* comm, void*) {
  return message("ncclSend", data, count, type, peer, comm, [&](Batch& batch, const Header& header) {
    batch.send(header, static_cast<const std::byte*>(data), peer);
  });
}

int ncclRecv(void* data, std::size_t count, int type, int peer, void* comm, void*) {
  return message("ncclRecv", data, count, type, peer, comm, [&](Batch& batch, const Header& header) {
    batch.receive(header, static_cast<std::byte*>(data), peer);
  });
}

// What not every NCCL has.
#ifndef MCR_STANDIN_OLD

const char* ncclGetLastError(void*) {
  static thread_local std::string copy;
  const std::lock_guard lock(process().mutex);
  copy = process().last_error;
  return copy.c_str();
}

int ncclCommInitRankConfig(void** comm, int size, UniqueId id, int rank, const void* config) {
  std::array<unsigned, 4> beginning{};
  std::memcpy(beginning.data(), config, sizeof(beginning));
  if (beginning[2] != 0xcafebeef) return error(InvalidArgument, "ncclCommInitRankConfig: config is not initialized");
  return connect("ncclCommInitRankConfig", comm, size, id, rank);
}

int ncclAlltoAll(const void* in, void* out, std::size_t count, int type, void* comm, void*) {
  return collective("ncclAlltoAll", AlltoAll, in, out, count, type, -1, -1, comm);
}

int ncclGather(const void* in, void* out, std::size_t count, int type, int root, void* comm, void*) {
  return collective("ncclGather", Gather, in, out, count, type, -1, root, comm);
}

int ncclScatter(const void* in, void* out, std::size_t count, int type, int root, void* comm, void*) {
  return collective("ncclScatter", Scatter, in, out, count, type, -1, root, comm);
}

#endif
}

namespace {

const bool kStarted = [] {
  const char* text = std::getenv("MCR_STANDIN_FAIL");
  if (text != nullptr) choose_failure(text);
  return true;
}();

}  // namespace
