// SPDX-License-Identifier: Apache-2.0
// This process's log: a bounded ring of records, which calls write and views read.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/call.h"
#include "base/immortal.h"
#include "device/device_times.h"
#include "observe/position.h"

namespace mcr {

/// A group as records refer to it. It lives as long as the process, so it outlives the group.
struct RecordedGroup {
  std::string name;
  std::vector<int> ranks;
  int rank = 0;
  int instance = 0;      // how many groups of that name this process has recorded before
  int64_t position = 0;  // the number of its Position
  // Number of calls so far. Collectives are made in one order on all ranks, so their numbers match.
  std::atomic<int64_t> collectives{0};
  std::atomic<int64_t> messages{0};
};

enum class CallState : uint8_t { Issued, Started, Completed, Failed };
inline constexpr std::array<std::string_view, 4> kCallStates = {"issued", "started", "completed", "failed"};

/// One call. Times are nanoseconds of steady_clock, 0 if there is none (yet).
struct Record {
  int64_t number = 0;  // among all records of the process, from 1
  int64_t seq = 0;     // among the group's collectives, or this rank's sends and receives in it, from 1; 0: refused
  const RecordedGroup* group = nullptr;
  const std::string* backend = nullptr;  // the candidate; null until one is chosen
  const std::string* codec = nullptr;
  const std::string* key = nullptr;      // the caller's name for the data
  const std::string* caller = nullptr;   // the Python function that made the call, if requested
  int64_t in_count = 0, out_count = 0;   // elements
  int64_t bytes = 0;                     // the data's size as in tables; for vectored calls the larger side
  int64_t sent_bytes = -1;               // bytes that the backend got, if a pass changed the size
  int64_t issue = 0;                     // when the call was made
  int64_t start = 0;                     // when it was handed over to its backend, or to the pass that holds it
  int64_t end = 0;                       // when it was seen complete; on a device, start and end are the device's times
  int64_t wait_begin = 0, wait_end = 0;  // begin of the first wait, end of the last; not for waits on complete calls
  int64_t waited = 0;                    // in all waits together
  uint64_t splits = 0;                   // the position of a vectored call's counts in the ring
  uint32_t in_splits = 0, out_splits = 0;
  int32_t root = 0;  // or peer, as a group rank
  int32_t tag = 0;
  uint32_t thread = 0;  // the calling thread's system id
  Op op = Op::barrier;
  DType dtype = DType::Byte;
  RedOp red = RedOp::SUM;
  CallState state = CallState::Issued;
  uint8_t vectored = 0, asynchronous = 0, fused = 0;
  uint8_t truncated = 0;  // too many splits to keep
  int32_t priority = 0;
};
static_assert(std::has_unique_object_representations_v<Record>, "records are copied word by word");

/// A record with its splits, as readers get it. Overwritten splits count as truncated.
struct Reading {
  Record record;
  std::vector<int64_t> in_splits, out_splits;
};

/// The newest records. Writers lock only the entry of their record; readers take no lock, and skip entries that are
/// being written.
class Ring {
 public:
  /// The ring begins with the record of this number.
  Ring(std::size_t capacity, int64_t first);
  std::size_t capacity() const { return capacity_; }
  int64_t first() const { return first_.load(std::memory_order_relaxed); }
  /// Begins again with a later record: earlier ones are not read any more. From one thread at a time; writers of
  /// earlier records may still be under way, as each entry tells its record's number.
  void restart(int64_t first) { first_.store(first, std::memory_order_relaxed); }

  /// Stores the splits of a record that is about to be put.
  void keep_splits(Record& record, std::span<const int64_t> in, std::span<const int64_t> out);
  void put(const Record& record);
  /// Changes the record of that number; false if it was overwritten.
  template <class Change>
  bool change(int64_t number, Change change);
  /// The records in [from, to) that are still there, oldest first.
  std::vector<Reading> read(int64_t from, int64_t to) const;

 private:
  static constexpr std::size_t kWords = sizeof(Record) / sizeof(uint64_t);
  using Words = std::array<uint64_t, kWords>;
  // The stamp: number, count of changes, whether the record is being written.
  static constexpr int kChangeBits = 16;
  struct Place {
    std::atomic<uint64_t> stamp{0};
    std::array<std::atomic<uint64_t>, kWords> words{};
  };

  static int64_t number_of(uint64_t stamp) { return static_cast<int64_t>(stamp >> (kChangeBits + 1)); }
  static uint64_t lock(Place& place);
  static void unlock(Place& place, uint64_t stamp) { place.stamp.store(stamp, std::memory_order_release); }
  static void store(Place& place, const Record& record);
  static Record load(const Place& place);
  Place& place_of(int64_t number) const { return places_[static_cast<std::size_t>(number) % capacity_]; }
  std::optional<Record> read_record(int64_t number) const;
  std::optional<std::vector<int64_t>> read_splits(uint64_t from, uint32_t count) const;

  const std::size_t capacity_;
  std::atomic<int64_t> first_;
  const std::unique_ptr<Place[]> places_;
  const std::size_t split_capacity_;
  const std::unique_ptr<std::atomic<int64_t>[]> splits_;  // a ring too
  std::atomic<uint64_t> next_split_{0};
};

/// Everything that this process has recorded. Never destroyed: Works may end after everything else. Thread-safe.
class Recorder {
 public:
  static constexpr std::size_t kCapacity = 65536;

  static Recorder& instance();
  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  /// A new capacity starts an empty log; the current capacity changes nothing.
  void resize(std::size_t capacity);
  std::size_t capacity() const { return ring().capacity(); }
  /// The permanent entry of a group.
  RecordedGroup& enter(const Position& group);
  /// All groups, in the order in which they were first recorded.
  std::vector<const RecordedGroup*> groups() const;

  int64_t next() { return next_.fetch_add(1, std::memory_order_relaxed); }
  Ring& ring() const { return *ring_.load(std::memory_order_acquire); }
  template <class Change>
  void change(int64_t number, Change change) {
    ring().change(number, change);
  }
  /// A wait for the call of that number begins.
  void waiting(int64_t number, int64_t begin);
  /// It has ended.
  void waited(int64_t number, int64_t begin, int64_t end);
  /// `source`: for a receive, the group rank that sent the message; else -1.
  void completed(int64_t number, bool failed, int source);

  /// Adds a device's times to the record of that number, once they can be read.
  void follow(int64_t number, std::shared_ptr<DeviceTimes> times);
  /// Reads all times that are available.
  void collect();

  /// The records in [from, to), oldest first.
  std::vector<Reading> read(int64_t from, int64_t to = std::numeric_limits<int64_t>::max()) {
    collect();
    return ring().read(from, std::min(to, next_.load(std::memory_order_relaxed)));
  }
  /// The number of records made, and how many of them were overwritten.
  int64_t made() const { return next_.load(std::memory_order_relaxed) - 1; }
  int64_t lost() const;

  /// Whether records name the function that made the call. The caller then writes it to caller().
  static bool callers_wanted() { return callers_wanted_.load(std::memory_order_relaxed); }
  static void want_callers(bool wanted) { callers_wanted_.store(wanted, std::memory_order_relaxed); }
  static const std::string*& caller();

 private:
  template <class T, class... Arguments>
  friend T& immortal(Arguments&&... arguments);
  Recorder();
  static std::atomic<bool> callers_wanted_;  // not inline: the bindings, with hidden symbols, would get a copy
  std::atomic<int64_t> next_{1};
  std::atomic<Ring*> ring_{nullptr};
  mutable std::mutex mutex_;
  // Guarded by mutex_. The last one is in use. A writer may hold another one, so each is kept for a later log of its
  // capacity.
  std::vector<std::unique_ptr<Ring>> rings_;
  std::mutex followed_mutex_;
  std::deque<std::pair<int64_t, std::shared_ptr<DeviceTimes>>> followed_;  // guarded by followed_mutex_
  std::deque<RecordedGroup> groups_;                                       // guarded by mutex_; entries never move
};

template <class Change>
bool Ring::change(int64_t number, Change change) {
  if (number < first()) return false;
  auto& place = place_of(number);
  const auto stamp = lock(place);
  if (number_of(stamp) != number) {
    unlock(place, stamp);
    return false;
  }
  Record record = load(place);
  change(record);
  store(place, record);
  constexpr uint64_t changes = (uint64_t{1} << (kChangeBits + 1)) - 2;
  unlock(place, (stamp & ~changes) | ((stamp + 2) & changes));
  return true;
}

}  // namespace mcr
