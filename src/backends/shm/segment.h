// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "backends/shm/layout.h"

namespace mcr::shm {

/// An owned file descriptor.
class File {
 public:
  File() = default;
  explicit File(int number) : number_(number) {}
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();
  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

/// Anonymous shared memory, mapped into this process. It has no name, and the kernel frees it with its last process.
class Memory {
 public:
  Memory(int file, int64_t bytes);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  /// Makes a file of zeros; throws Error if the system refuses.
  static File make(int64_t bytes);
  /// The mapping of the file. Ranks that are threads of one process share one mapping, so that tools such as
  /// ThreadSanitizer see that they share memory.
  static std::shared_ptr<Memory> map(const File& file, int64_t bytes);

  /// Populates these bytes now, near the calling thread's core; throws Error if the system has no memory. Without this
  /// a later access would end the process.
  void populate(int64_t offset, int64_t bytes);
  std::byte* at(int64_t offset) const { return start_ + offset; }

 private:
  std::byte* start_;
  int64_t bytes_;
};

/// The shared memory of a group, with access to its parts.
class Segment {
 public:
  Segment(const Layout& layout, std::shared_ptr<Memory> memory) : layout_(layout), memory_(std::move(memory)) {}

  const Layout& layout() const { return layout_; }
  std::atomic<uint32_t>& sleepers() { return part<std::atomic<uint32_t>>(layout_.sleepers_at()); }
  Bell& bell(int rank) { return part<Bell>(layout_.bell_at(rank)); }
  Slot& slot(int rank, uint64_t step) { return part<Slot>(layout_.slot_at(rank, step)); }
  Counts& counts(int rank) { return part<Counts>(layout_.counters_at(rank)); }
  std::byte* piece(int rank, uint64_t number) { return memory_->at(layout_.piece_at(rank, number)); }
  Ring& ring(int from, int to) { return part<Ring>(layout_.ring_at(from, to)); }
  std::byte* packets(int from, int to) {
    return memory_->at(layout_.ring_at(from, to) + static_cast<int64_t>(sizeof(Ring)));
  }

 private:
  // Memory of zeros is a valid object of each of these types.
  template <class T>
  T& part(int64_t offset) {
    return *reinterpret_cast<T*>(memory_->at(offset));
  }

  Layout layout_;
  std::shared_ptr<Memory> memory_;
};

}  // namespace mcr::shm
