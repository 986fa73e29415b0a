// SPDX-License-Identifier: Apache-2.0
// Anonymous memory that processes of one host share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace mcr {

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

/// The advice that follows the text of a system error: if the process has too many files open, or its user has sent too
/// many that are not received yet, the end of a sentence that names the limit, else nothing.
std::string advice_on_files(int error);

/// Anonymous shared memory, mapped into this process. It has no name, and the kernel frees it with its last process.
/// All functions throw Error if the system refuses; `variable` is the environment variable that bounds the memory.
class Memory {
 public:
  Memory(int file, int64_t bytes, const char* variable);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  /// Makes a file of zeros.
  static File make(int64_t bytes, const char* variable);
  /// The mapping of the file. Ranks that are threads of one process share one mapping, so that tools such as
  /// ThreadSanitizer see that they share memory.
  static std::shared_ptr<Memory> map(const File& file, int64_t bytes, const char* variable);

  /// Throws Error if the system has less free memory than this: it provides pages one by one, and ends a process when
  /// there are none left.
  static void require_free(int64_t bytes, const char* variable);
  /// Populates these bytes now, near the calling thread's core. Without this, a later access would end the process if
  /// the system has no memory.
  void populate(int64_t offset, int64_t bytes);
  /// Returns whole pages to the system; they read as zeros afterwards.
  void discard(int64_t offset, int64_t bytes) noexcept;
  /// Leaves the memory out of this process's core dumps, which would otherwise also make the system provide all of it.
  void leave_out_of_dumps() noexcept;
  std::byte* at(int64_t offset) const { return start_ + offset; }
  int64_t bytes() const { return bytes_; }

 private:
  File file_;
  std::byte* start_;
  int64_t bytes_;
  const char* variable_;
};

}  // namespace mcr
