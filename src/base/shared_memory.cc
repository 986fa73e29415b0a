// SPDX-License-Identifier: Apache-2.0
#include "base/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/free_memory.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace mcr {

namespace {

constexpr int64_t kSmallest = 4096;  // bytes that one allocation takes, if there are more

[[noreturn]] void refused(const char* what, int64_t bytes, int number, const char* variable) {
  const auto files = advice_on_files(number);
  throw Error(ErrorCode::Backend, "shm: the system refuses " + std::to_string(bytes) + " bytes of shared memory (" +
                                      what + ": " + std::system_category().message(number) + ")" +
                                      (files.empty() ? "; " + std::string(variable) + " sets a lower bound" : files));
}

}  // namespace

void Memory::require_free(int64_t bytes, const char* variable) {
  const auto free = free_memory();
  if (bytes <= free) return;
  throw Error(ErrorCode::Backend, "shm: expected " + std::to_string(bytes) + " bytes of free memory, got " +
                                      std::to_string(free) + "; " + variable + " sets a lower bound");
}

std::string advice_on_files(int error) {
  const bool limited = error == EMFILE || error == ENFILE || error == ETOOMANYREFS;
  return limited ? "; raise the limit of open files (ulimit -n)" : "";
}

File::File(File&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

File::~File() {
  if (number_ >= 0) close(number_);
}

Memory::Memory(int file, int64_t bytes, const char* variable)
    : file_(fcntl(file, F_DUPFD_CLOEXEC, 0)), bytes_(bytes), variable_(variable) {
  if (!file_) refused("fcntl", bytes, errno, variable);
  void* const start =
      mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (start == MAP_FAILED) refused("mmap", bytes, errno, variable);
  start_ = static_cast<std::byte*>(start);
  madvise(start, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // only a hint
}

Memory::~Memory() { munmap(start_, static_cast<std::size_t>(bytes_)); }

File Memory::make(int64_t bytes, const char* variable) {
  File file(memfd_create("mcr_dl", MFD_CLOEXEC));
  if (!file) refused("memfd_create", bytes, errno, variable);
  if (ftruncate(file.get(), bytes) != 0) refused("ftruncate", bytes, errno, variable);
  return file;
}

std::shared_ptr<Memory> Memory::map(const File& file, int64_t bytes, const char* variable) {
  struct stat found{};
  if (fstat(file.get(), &found) != 0) refused("fstat", bytes, errno, variable);
  static std::mutex mutex;
  static std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Memory>> known;
  const std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = known[{found.st_dev, found.st_ino}];
  auto memory = entry.lock();
  if (memory == nullptr) entry = memory = std::make_shared<Memory>(file.get(), bytes, variable);
  return memory;
}

void Memory::populate(int64_t offset, int64_t bytes) {
  require_free(bytes, variable_);
  if (madvise(at(offset), static_cast<std::size_t>(bytes), MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) refused("madvise", bytes, errno, variable_);
  // Kernels before 5.14 do not have it. An allocation leaves the page tables empty. A signal ends it without an effect:
  // a smaller one fits between the signals of a timer.
  for (auto piece = bytes; bytes > 0;) {
    piece = std::min(piece, bytes);
    if (fallocate(file_.get(), 0, offset, piece) == 0) {
      offset += piece;
      bytes -= piece;
    } else if (errno == EINTR) {
      piece = std::max(piece / 2, kSmallest);
    } else {
      refused("fallocate", bytes, errno, variable_);
    }
  }
}

void Memory::discard(int64_t offset, int64_t bytes) noexcept {
  madvise(at(offset), static_cast<std::size_t>(bytes), MADV_REMOVE);
}

void Memory::leave_out_of_dumps() noexcept { madvise(start_, static_cast<std::size_t>(bytes_), MADV_DONTDUMP); }

}  // namespace mcr
