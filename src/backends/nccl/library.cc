// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/library.h"

#include <dlfcn.h>

#include <string_view>

#include "base/text.h"

namespace mcr::nccl {

namespace {

void* opened(const std::string& name) {
  void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw Error(ErrorCode::Unavailable, dlerror());
  return handle;
}

}  // namespace

std::string version_text(int code) {
  // Up to 2.8 the code had one digit less.
  const int major = code < 10000 ? code / 1000 : code / 10000;
  const int minor = code < 10000 ? code % 1000 / 100 : code % 10000 / 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(code % 100);
}

Library::Library(const std::string& path)
    : name_(path.empty() ? "libnccl.so.2" : path),
      handle_(opened(name_)),
      error_string_(reinterpret_cast<const char* (*)(Result)>(bind("ncclGetErrorString", true))),
      last_error_(reinterpret_cast<const char* (*)(Comm)>(bind("ncclGetLastError", false))) {
  if (get_version) get_version(&version_);
  if (get_version && version_ < kOldestVersion) {
    throw Error(ErrorCode::Unavailable,
                name_ + ": expected NCCL " + version_text(kOldestVersion) + " or newer, got " + version_text(version_));
  }
  if (!missing_needed_.empty()) {
    throw Error(ErrorCode::Unavailable,
                name_ + ": expected an NCCL library, got one without " + joined(missing_needed_));
  }
  stand_in_ = dlsym(handle_, "mcr_dl_stand_in") != nullptr;
}

void* Library::bind(const char* name, bool needed) {
  void* const symbol = dlsym(handle_, name);
  if (symbol == nullptr) (needed ? missing_needed_ : missing_optional_).emplace_back(name);
  return symbol;
}

std::string Library::text() const {
  std::string text = "NCCL " + version_text(version_);
  if (stand_in_) text += " (stand-in for tests)";
  if (!missing_optional_.empty()) text += ", without " + joined(missing_optional_);
  return text;
}

std::string Library::describe(Result result, const char* what) const {
  std::string text = std::string(what) + ": " + error_string_(result);
  const std::string_view last = last_error_ == nullptr ? "" : last_error_(nullptr);
  if (!last.empty()) text += ": " + std::string(last);
  return text;
}

void require_cuda_device() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) throw Error(ErrorCode::Unavailable, "no CUDA device: libcuda.so.1 cannot be loaded");
  auto* const init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  auto* const count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  int code = init == nullptr || count == nullptr ? -1 : init(0);
  if (code == 0) code = count(&devices);
  constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE
  if (code == 0 && devices > 0) return;
  if (code == 0 || code == kNoDevice) throw Error(ErrorCode::Unavailable, "no CUDA device");
  throw Error(ErrorCode::Unavailable, "the CUDA driver cannot be used: it answers with error " + std::to_string(code));
}

}  // namespace mcr::nccl
