// SPDX-License-Identifier: Apache-2.0
// The NCCL communicators behind one communicator of the core, one per lane, and the handling of their failures.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/nccl/library.h"
#include "plugin/backend.h"

namespace mcr::nccl {

/// Thread-safe. An NCCL communicator may be used by one thread at a time, and not while another thread frees it: every
/// use is under lock().
class Lanes : public std::enable_shared_from_this<Lanes> {
 public:
  using Lock = std::unique_lock<std::recursive_timed_mutex>;

  explicit Lanes(std::shared_ptr<const Library> library) : library_(std::move(library)) {}
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  /// Makes one more lane: a collective of the group's ranks, with an id that is equal on all of them.
  void connect(const UniqueId& id, const GroupSpec& spec);
  int size() const { return static_cast<int>(comms_.size()); }

  /// Waits for the lock; throws the failure if there has been one.
  Lock lock();
  /// Only while the lock is held.
  Comm comm(int lane) const { return comms_[static_cast<std::size_t>(lane)]; }

  /// Throws the failure if there has been one.
  void check() const {
    if (failed_.load(std::memory_order_acquire)) [[unlikely]]
      refuse();
  }
  /// Asks NCCL for asynchronous errors; if there is one, keeps its text and aborts all lanes, as abort() does.
  void poll() noexcept;
  /// Ends running operations soon, on a thread of its own. check() throws the text of the first failure from now on.
  void abort(const std::string& text) noexcept;
  /// Waits until the aborts of all Lanes of this process are over, or the time has passed.
  static void wait_for_aborts(std::chrono::nanoseconds limit);
  /// With the lock held: the thread that keeps it collects calls, and is not inside the library meanwhile.
  void set_collecting(bool collecting) noexcept { collecting_ = collecting; }
  /// Keeps memory that operations use until the communicators have ended.
  void own(std::shared_ptr<void> memory) { memory_ = std::move(memory); }
  void* memory() const { return memory_.get(); }
  /// Frees the communicators in the regular way, unless they are being aborted. They are not used afterwards.
  void close() noexcept;

 private:
  [[noreturn]] void refuse() const;
  bool fail(const std::string& text);
  void begin_abort() noexcept;
  void abort_all() noexcept;

  const std::shared_ptr<const Library> library_;
  std::vector<Comm> comms_;
  std::shared_ptr<void> memory_;
  std::vector<std::unique_ptr<std::string>> names_;  // NCCL keeps pointers to them
  std::recursive_timed_mutex mutex_;
  std::atomic<bool> ended_ = false;  // aborted or destroyed; happens once
  std::atomic<bool> collecting_ = false;
  std::atomic<bool> failed_ = false;  // once set, text_ does not change
  std::string text_;
  std::mutex text_mutex_;
};

}  // namespace mcr::nccl
