// SPDX-License-Identifier: Apache-2.0
#include "segment.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace standin {

namespace {

constexpr std::chrono::seconds kStart{30};
constexpr std::size_t kHeader = 4096;

[[noreturn]] void fail_with(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

}  // namespace

std::size_t Ring::push(const std::byte* from, std::size_t size) {
  const uint64_t end = pushed_.load(std::memory_order_relaxed);
  const std::size_t room = kSize - (end - pulled_.load(std::memory_order_acquire));
  const std::size_t start = end % kSize;
  size = std::min({size, room, kSize - start});
  std::memcpy(bytes_ + start, from, size);
  pushed_.store(end + size, std::memory_order_release);
  return size;
}

std::size_t Ring::pull(std::byte* to, std::size_t size) {
  const uint64_t begin = pulled_.load(std::memory_order_relaxed);
  const std::size_t there = pushed_.load(std::memory_order_acquire) - begin;
  const std::size_t start = begin % kSize;
  size = std::min({size, there, kSize - start});
  std::memcpy(to, bytes_ + start, size);
  pulled_.store(begin + size, std::memory_order_release);
  return size;
}

Place Segment::make() {
  const int descriptor = memfd_create("mcr_dl stand-in", MFD_CLOEXEC);
  if (descriptor < 0) fail_with("memfd_create");
  return {kMagic, getpid(), descriptor};
}

Segment::Segment(const Place& place, int rank, int size)
    : size_(size), bytes_(kHeader + sizeof(Ring) * static_cast<std::size_t>(size * size)) {
  static_assert(sizeof(Control) <= kHeader);
  if (place.magic != kMagic) throw std::runtime_error("expected an id of ncclGetUniqueId");
  const std::string path = "/proc/" + std::to_string(place.pid) + "/fd/" + std::to_string(place.descriptor);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) fail_with(path);
  void* memory = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(bytes_)) == 0) {
    memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  close(file);
  if (memory == MAP_FAILED) fail_with("mmap");
  control_ = static_cast<Control*>(memory);
  rings_ = reinterpret_cast<Ring*>(static_cast<std::byte*>(memory) + kHeader);
  control_->attached.fetch_add(1);
  const auto deadline = std::chrono::steady_clock::now() + kStart;
  while (control_->attached.load() < size) {
    if (std::chrono::steady_clock::now() > deadline) {
      munmap(memory, bytes_);
      throw std::runtime_error("rank " + std::to_string(rank) + ": the other ranks have not come");
    }
    sched_yield();
  }
  if (place.pid == getpid() && rank == 0) close(place.descriptor);
}

Segment::~Segment() { munmap(control_, bytes_); }

void Segment::fail(int result, const std::string& text) {
  int none = 0;
  if (!control_->failed.compare_exchange_strong(none, 1)) return;
  control_->result = result;
  const std::size_t length = std::min(text.size(), sizeof(control_->text) - 1);
  std::memcpy(control_->text, text.data(), length);
  control_->text[length] = '\0';
  control_->failed.store(2);
}

int Segment::failure() const { return control_->failed.load() == 2 ? control_->result : 0; }

std::string Segment::text() const { return failure() == 0 ? "" : control_->text; }

}  // namespace standin
