// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/library.h"

#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/process.h"
#include "base/reduce.h"

namespace mcr::mpi {

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) [[likely]]
    return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(ErrorCode::Backend, std::string(what) + ": " + text.data());
}

bool finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

// "MPICH Version:      5.0.2\n..." and "Open MPI v5.0.11, package: ..." become "MPICH 5.0.2" and "Open MPI 5.0.11".
std::string version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  std::string_view line = text.data();
  line = line.substr(0, line.find_first_of(",\n"));
  std::istringstream words{std::string(line)};
  std::string result;
  for (std::string word; words >> word;) {
    if (word == "Version:" || word == "Version" || word == ":") continue;
    if (word.size() > 1 && word[0] == 'v' && word[1] >= '0' && word[1] <= '9') word.erase(0, 1);
    result += (result.empty() ? "" : " ") + word;
  }
  return result;
}

namespace {

constexpr const char* kThreadLevel = "MCR_DL_MPI_THREAD_LEVEL";
constexpr const char* kStreams = "MCR_DL_MPI_STREAMS";
constexpr std::string_view kSerialized = "serialized", kAuto = "auto";

// The value of an environment variable; the fallback if it is unset or empty.
std::string_view setting(const char* name, std::string_view fallback) {
  const auto value = value_of_variable(name);
  return value.empty() ? fallback : value;
}

}  // namespace

bool interruptible() { return flag_of_variable("MCR_DL_MPI_INTERRUPTIBLE", false); }

std::string settings() {
  std::string text = interruptible() ? ", interruptible" : "";
  if (setting(kThreadLevel, kSerialized) != kSerialized) text += ", several threads";
  if (const auto streams = setting(kStreams, kAuto); streams != kAuto) text += ", streams by " + std::string(streams);
  return text;
}

MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::Byte:
    case DType::Float8_e4m3fn:
    case DType::Float8_e5m2:
    case DType::Bool:
      return MPI_UINT8_T;
    case DType::Char:
      return MPI_INT8_T;
    case DType::UInt16:
    case DType::Half:
    case DType::BFloat16:
      return MPI_UINT16_T;
    case DType::Short:
      return MPI_INT16_T;
    case DType::UInt32:
      return MPI_UINT32_T;
    case DType::Int:
      return MPI_INT32_T;
    case DType::UInt64:
      return MPI_UINT64_T;
    case DType::Long:
      return MPI_INT64_T;
    case DType::Float:
      return MPI_FLOAT;
    case DType::Double:
      return MPI_DOUBLE;
    case DType::ComplexFloat:
      return MPI_C_FLOAT_COMPLEX;
    case DType::ComplexDouble:
      return MPI_C_DOUBLE_COMPLEX;
  }
  return MPI_DATATYPE_NULL;
}

Layout::Layout(int64_t count, DType dtype) : type_(type_of(dtype)) {
  if constexpr (kSmallCounts) {
    if (count > INT_MAX) {
      make(count, size_of(dtype));
      return;
    }
  }
  count_ = static_cast<Count>(count);
}

// MPI keeps the type until the operations that use it are complete.
Layout::~Layout() {
  if (made_) MPI_Type_free(&type_);
}

void Layout::make(int64_t count, int64_t bytes) {
  constexpr int64_t kBlock = int64_t{1} << 30;
  const int whole = static_cast<int>(count / kBlock);
  const std::array<int, 2> counts = {whole, static_cast<int>(count % kBlock)};
  const std::array<MPI_Aint, 2> displs = {0, whole * kBlock * bytes};
  MPI_Datatype block = MPI_DATATYPE_NULL;
  check(MPI_Type_contiguous(static_cast<int>(kBlock), type_, &block), "MPI_Type_contiguous");
  const std::array<MPI_Datatype, 2> types = {block, type_};
  const int code = MPI_Type_create_struct(2, counts.data(), displs.data(), types.data(), &type_);
  MPI_Type_free(&block);
  check(code, "MPI_Type_create_struct");
  made_ = true;
  check(MPI_Type_commit(&type_), "MPI_Type_commit");
  count_ = 1;
}

namespace {

MPI_Op native_op(RedOp red) {
  switch (red) {
    case RedOp::SUM:
      return MPI_SUM;
    case RedOp::PRODUCT:
      return MPI_PROD;
    case RedOp::MIN:
      return MPI_MIN;
    case RedOp::MAX:
      return MPI_MAX;
    case RedOp::BAND:
      return MPI_BAND;
    case RedOp::BOR:
      return MPI_BOR;
    case RedOp::BXOR:
      return MPI_BXOR;
    case RedOp::AVG:
    case RedOp::PREMUL_SUM:
      break;
  }
  return MPI_OP_NULL;
}

/// Whether MPI lacks a reduction: it has no floating-point types of 16 and 8 bits, and the results of MIN and MAX of
/// those that it has depend on the order of the ranks if there is a NaN.
constexpr bool lacks(DType dtype, RedOp red) {
  const bool sums = red == RedOp::SUM || red == RedOp::PRODUCT;
  return orders_numbers(dtype, red) || (sums && row(dtype).kind == DTypeKind::Floating && size_of(dtype) <= 2);
}

constexpr std::size_t index_of(DType dtype, RedOp red) {
  return static_cast<std::size_t>(dtype) * kReductions.size() + static_cast<std::size_t>(red);
}
constexpr DType dtype_at(std::size_t index) { return static_cast<DType>(index / kReductions.size()); }
constexpr RedOp red_at(std::size_t index) { return static_cast<RedOp>(index % kReductions.size()); }

/// The core's reduction of an index, as MPI calls it.
template <std::size_t index>
void reduce_own(void* in, void* inout, Count* count, MPI_Datatype*) {
  combine(inout, in, *count, dtype_at(index), red_at(index));
}

constexpr auto kOwnReductions = []<std::size_t... index>(std::index_sequence<index...>) {
  return std::array{&reduce_own<index>...};
}(std::make_index_sequence<kDTypes.size() * kReductions.size()>());

int wanted_thread_level() {
  const auto name = setting(kThreadLevel, kSerialized);
  if (name == kSerialized) return MPI_THREAD_SERIALIZED;
  if (name == "multiple") return MPI_THREAD_MULTIPLE;
  throw Error(ErrorCode::InvalidArgument,
              std::string(kThreadLevel) + ": expected 'serialized' or 'multiple', got '" + std::string(name) + "'");
}

// The library's own answer, from Open MPI's function or from MPICH's.
bool cuda_aware() {
  if (const auto query = reinterpret_cast<int (*)()>(Symbol::optional("MPIX_Query_cuda_support"))) {
    return query() == 1;
  }
  if (const auto query = reinterpret_cast<int (*)(int, int*)>(Symbol::optional("MPIX_GPU_query_support"))) {
    constexpr int kCuda = 0;  // MPIX_GPU_SUPPORT_CUDA
    int supported = 0;
    return query(kCuda, &supported) == MPI_SUCCESS && supported != 0;
  }
  return false;
}

// The two ways to combine MPI with a device's streams: MPI handles them, or the core does, by copies to the host. None:
// the library decides.
std::optional<bool> wants_device_memory() {
  const auto name = setting(kStreams, kAuto);
  if (name == kAuto) return std::nullopt;
  if (name == "mpi") return true;
  if (name == "mcr") return false;
  throw Error(ErrorCode::InvalidArgument,
              std::string(kStreams) + ": expected 'auto', 'mpi' or 'mcr', got '" + std::string(name) + "'");
}

// MPICH unlinks its shared memory when it is finalized, which never happens in a job that is killed: the memory would
// be lost until the host reboots. Once unlinked, it is freed with the last process.
void unlink_shared_memory() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const auto begin = line.find("/dev/shm/mpich_shm_");
    if (begin != std::string::npos) unlink(line.c_str() + begin);
  }
}

}  // namespace

Library& Library::get() {
  static_assert(std::is_trivially_destructible_v<Library>);
  static Library library;
  return library;
}

MPI_Op Library::op(DType dtype, RedOp red) const { return ops_[index_of(dtype, red)]; }

// The core's own reductions compute on the host.
bool Library::takes_device_memory(const Call& call) const {
  return device_memory_ && (!row(call.op).is(kReduces) || !lacks(call.dtype, call.red));
}

void Library::start() {
  std::lock_guard lock(mutex_);
  if (ready_) return;
  const int wanted = wanted_thread_level();
  const auto device_memory = wants_device_memory();
  if (finalized()) throw Error(ErrorCode::Unavailable, "MPI has been finalized and cannot be started again");
  int initialized = 0;
  check(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized == 0) {
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, wanted, &provided), "MPI_Init_thread");
    ours_ = true;
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");  // all ranks of the host have mapped it now
    unlink_shared_memory();
  }
  int level = 0;
  check(MPI_Query_thread(&level), "MPI_Query_thread");
  if (level < MPI_THREAD_SERIALIZED) {
    throw Error(ErrorCode::Unavailable,
                "MPI runs at a thread level below MPI_THREAD_SERIALIZED: initialize MPI by "
                "MPI_Init_thread with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE");
  }
  serialized_ = level < MPI_THREAD_MULTIPLE;
  device_memory_ = device_memory ? *device_memory : cuda_aware();
  void* limit = nullptr;
  int known = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&limit), &known), "MPI_Comm_get_attr");
  if (known != 0) largest_tag_ = *static_cast<const int*>(limit);
  if (serialized_) start_variants();
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    ops_[i] = native_op(red_at(i));
    if (lacks(dtype_at(i), red_at(i))) check(kCreateOp(kOwnReductions[i], 1, &ops_[i]), "MPI_Op_create");
  }
  ready_ = true;
}

void Library::start_variants() {
  int level = 0;
  check(MPI_T_init_thread(MPI_THREAD_SERIALIZED, &level), "MPI_T_init_thread");
  tools_ = true;
  algorithms_.start();
  forced_.start();
}

void Library::stop_variants() {
  if (!std::exchange(tools_, false)) return;
  algorithms_.stop();
  forced_.stop();
  MPI_T_finalize();
}

void Library::stop() {
  std::lock_guard lock(mutex_);
  if (!ready_.exchange(false) || finalized()) return;
  stop_variants();
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (lacks(dtype_at(i), red_at(i))) MPI_Op_free(&ops_[i]);
  }
  if (std::exchange(ours_, false)) check(MPI_Finalize(), "MPI_Finalize");
}

}  // namespace mcr::mpi
