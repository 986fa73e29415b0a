// SPDX-License-Identifier: Apache-2.0
// The memory that the ranks of one communicator share: a ring of bytes per ordered pair of ranks, and the first error.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace standin {

/// Where the memory of a communicator is found: a file descriptor of the process that has made the id. It has no name,
/// so nothing is left behind when processes are killed.
struct Place {
  uint32_t magic;
  int32_t pid;
  int32_t descriptor;
};

inline constexpr uint32_t kMagic = 0x51a4d145;

/// Bytes from one rank to another.
class Ring {
 public:
  /// As many bytes as there is room for, or as there are; returns how many.
  std::size_t push(const std::byte* from, std::size_t size);
  std::size_t pull(std::byte* to, std::size_t size);

 private:
  static constexpr std::size_t kSize = 1 << 16;
  alignas(64) std::atomic<uint64_t> pushed_;
  alignas(64) std::atomic<uint64_t> pulled_;
  std::byte bytes_[kSize];
};

class Segment {
 public:
  /// A place for a new communicator. Throws std::runtime_error.
  static Place make();
  /// Waits until all ranks are there. Throws std::runtime_error.
  Segment(const Place& place, int rank, int size);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  Ring& ring(int from, int to) { return rings_[from * size_ + to]; }
  /// Tells all ranks; the first error counts.
  void fail(int result, const std::string& text);
  /// 0 if nothing has failed.
  int failure() const;
  std::string text() const;

 private:
  struct Control {
    std::atomic<int> attached;
    std::atomic<int> failed;  // 1: is being written, 2: can be read
    int result;
    char text[1024];
  };

  int size_;
  std::size_t bytes_;
  Control* control_;
  Ring* rings_;
};

}  // namespace standin
