// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/peer_memory.h"

#include <sys/uio.h>

#include <cerrno>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "backends/shm/copies.h"
#include "base/error.h"
#include "base/shared_heap.h"

namespace mcr::shm {

bool read_memory(pid_t process, const std::byte* from, std::byte* to, int64_t bytes) {
  while (bytes > 0) {
    const iovec local{to, static_cast<std::size_t>(bytes)};
    const iovec remote{const_cast<std::byte*>(from), static_cast<std::size_t>(bytes)};
    const auto moved = process_vm_readv(process, &local, 1, &remote, 1, 0);
    if (moved <= 0) {
      if (moved < 0 && errno == ESRCH) return false;
      throw Error(ErrorCode::Backend, "shm: the memory of process " + std::to_string(process) + " cannot be read: " +
                                          std::system_category().message(moved < 0 ? errno : EFAULT) +
                                          "; MCR_DL_SHM_DIRECT=0 avoids such reads");
    }
    from += moved;
    to += moved;
    bytes -= moved;
  }
  return true;
}

PeerMemory::PeerMemory(std::vector<pid_t> processes, std::vector<Heap> heaps)
    : processes_(std::move(processes)), heaps_(std::move(heaps)) {}

bool PeerMemory::shared(const std::byte* memory, int64_t bytes) const {
  return !heaps_.empty() && SharedHeap::instance().contains(memory, bytes);
}

const std::byte* PeerMemory::find(int rank, const std::byte* address) const {
  if (heaps_.empty()) return nullptr;
  const auto& heap = heaps_[static_cast<std::size_t>(rank)];
  const auto offset = address - heap.begin;
  return offset >= 0 && offset < heap.memory->bytes() ? heap.memory->at(offset) : nullptr;
}

Reading PeerMemory::read(int rank, const std::byte* from, std::byte* to, int64_t bytes, Counter& given_up,
                         uint64_t before) const {
  std::optional<Error> problem;
  bool there = true;
  if (const auto* const found = find(rank, from)) {
    copy_bytes(to, found, bytes);
  } else {
    try {
      there = read_memory(processes_[static_cast<std::size_t>(rank)], from, to, bytes);
    } catch (const Error& error) {
      problem = error;
    }
  }
  // A read-modify-write, which is not done before the memory has been read.
  if (given_up.fetch_add(0) != before) return Reading::GivenUp;
  if (problem) throw Error(*problem);
  return there ? Reading::Done : Reading::Ended;
}

}  // namespace mcr::shm
