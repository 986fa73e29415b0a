// SPDX-License-Identifier: Apache-2.0
#include "observe/recorder.h"

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

namespace mcr {

namespace {

constexpr std::size_t kSplitsPerRecord = 8;  // the average over all records; most are not vectored
constexpr std::size_t kLargestSplits = 8192;
constexpr int kTries = 64;

}  // namespace

Ring::Ring(std::size_t capacity, int64_t first)
    : capacity_(std::max<std::size_t>(1, capacity)),
      first_(first),
      places_(std::make_unique<Place[]>(capacity_)),
      split_capacity_(std::max(2 * kLargestSplits, kSplitsPerRecord * capacity_)),
      splits_(std::make_unique<std::atomic<int64_t>[]>(split_capacity_)) {}

uint64_t Ring::lock(Place& place) {
  for (int tries = 1;; ++tries) {
    auto stamp = place.stamp.load(std::memory_order_relaxed);
    if ((stamp & 1) == 0 && place.stamp.compare_exchange_weak(stamp, stamp | 1, std::memory_order_acquire)) {
      return stamp;
    }
    if (tries % kTries == 0) std::this_thread::yield();
  }
}

// Releases and acquires instead of fences, which ThreadSanitizer does not support: a reader that gets a new word also
// sees the lock taken before it was written.
void Ring::store(Place& place, const Record& record) {
  const auto words = std::bit_cast<Words>(record);
  for (std::size_t i = 0; i < kWords; ++i) place.words[i].store(words[i], std::memory_order_release);
}

Record Ring::load(const Place& place) {
  Words words;
  for (std::size_t i = 0; i < kWords; ++i) words[i] = place.words[i].load(std::memory_order_acquire);
  return std::bit_cast<Record>(words);
}

void Ring::keep_splits(Record& record, std::span<const int64_t> in, std::span<const int64_t> out) {
  const auto count = in.size() + out.size();
  if (count == 0) return;
  if (count > kLargestSplits) {
    record.truncated = 1;
    return;
  }
  record.splits = next_split_.fetch_add(count, std::memory_order_acq_rel);
  record.in_splits = static_cast<uint32_t>(in.size());
  record.out_splits = static_cast<uint32_t>(out.size());
  auto place = record.splits;
  for (const auto part : {in, out}) {
    for (const auto value : part) splits_[place++ % split_capacity_].store(value, std::memory_order_release);
  }
}

void Ring::put(const Record& record) {
  auto& place = place_of(record.number);
  const auto stamp = lock(place);
  // If the writer was delayed, a record of the next round may be here.
  if (number_of(stamp) > record.number) return unlock(place, stamp);
  store(place, record);
  unlock(place, static_cast<uint64_t>(record.number) << (kChangeBits + 1));
}

std::optional<Record> Ring::read_record(int64_t number) const {
  const auto& place = place_of(number);
  for (int tries = 0; tries < kTries; ++tries) {
    const auto before = place.stamp.load(std::memory_order_acquire);
    if ((before & 1) == 0) {
      if (number_of(before) != number) return std::nullopt;
      const Record record = load(place);
      if (place.stamp.load(std::memory_order_relaxed) == before) return record;
    }
    std::this_thread::yield();
  }
  return std::nullopt;
}

std::optional<std::vector<int64_t>> Ring::read_splits(uint64_t from, uint32_t count) const {
  if (count == 0) return std::vector<int64_t>{};  // `from` is of no use
  std::vector<int64_t> result(count);
  for (auto& value : result) value = splits_[from++ % split_capacity_].load(std::memory_order_acquire);
  if (next_split_.load(std::memory_order_relaxed) > from - count + split_capacity_) return std::nullopt;
  return result;
}

std::vector<Reading> Ring::read(int64_t from, int64_t to) const {
  std::vector<Reading> result;
  for (auto number = std::max({from, first(), to - static_cast<int64_t>(capacity_)}); number < to; ++number) {
    auto record = read_record(number);
    if (!record) continue;
    auto in = read_splits(record->splits, record->in_splits);
    auto out = read_splits(record->splits + record->in_splits, record->out_splits);
    if (in && out) {
      result.push_back({*record, *std::move(in), *std::move(out)});
    } else {
      record->truncated = 1;
      result.push_back({*record, {}, {}});
    }
  }
  return result;
}

std::atomic<bool> Recorder::callers_wanted_{false};

const std::string*& Recorder::caller() {
  thread_local const std::string* name = nullptr;
  return name;
}

Recorder::Recorder() { resize(kCapacity); }

Recorder& Recorder::instance() {
  static auto& recorder = immortal<Recorder>();
  return recorder;
}

void Recorder::resize(std::size_t capacity) {
  const std::lock_guard lock(mutex_);
  if (!rings_.empty() && rings_.back()->capacity() == capacity) return;
  const auto former = std::ranges::find(rings_, capacity, [](const auto& ring) { return ring->capacity(); });
  if (former == rings_.end()) {
    rings_.push_back(std::make_unique<Ring>(capacity, next_.load()));
  } else {
    (*former)->restart(next_.load());
    std::rotate(former, std::next(former), rings_.end());
  }
  ring_.store(rings_.back().get(), std::memory_order_release);
}

RecordedGroup& Recorder::enter(const Position& group) {
  const std::lock_guard lock(mutex_);
  int instance = 0;
  for (auto& known : groups_) {
    if (known.position == group.number()) return known;
    if (known.name == group.group()) ++instance;
  }
  auto& entered = groups_.emplace_back();
  entered.name = group.group();
  entered.ranks = group.ranks();
  entered.rank = group.rank();
  entered.instance = instance;
  entered.position = group.number();
  return entered;
}

std::vector<const RecordedGroup*> Recorder::groups() const {
  const std::lock_guard lock(mutex_);
  std::vector<const RecordedGroup*> result;
  for (const auto& group : groups_) result.push_back(&group);
  return result;
}

void Recorder::waiting(int64_t number, int64_t begin) {
  change(number, [&](Record& record) {
    if (record.wait_begin == 0) record.wait_begin = begin;
  });
}

void Recorder::waited(int64_t number, int64_t begin, int64_t end) {
  change(number, [&](Record& record) {
    record.wait_end = std::max(record.wait_end, end);
    record.waited += end - begin;
  });
}

void Recorder::completed(int64_t number, bool failed, int source) {
  const auto end = now();
  change(number, [&](Record& record) {
    if (record.state != CallState::Completed) record.end = end;  // else it is the device's
    record.state = failed ? CallState::Failed : CallState::Completed;
    if (record.root == kAnyRank) record.root = source;
  });
}

void Recorder::follow(int64_t number, std::shared_ptr<DeviceTimes> times) {
  const std::lock_guard lock(followed_mutex_);
  followed_.emplace_back(number, std::move(times));
  // Entries beyond the ring's capacity no longer have a record.
  if (followed_.size() > capacity()) followed_.pop_front();
}

void Recorder::collect() {
  const std::lock_guard lock(followed_mutex_);
  while (!followed_.empty() && followed_.front().second->ready()) {
    const auto [number, times] = followed_.front();
    followed_.pop_front();
    const auto span = times->read();
    change(number, [&](Record& record) {
      record.start = span.start;
      record.end = span.end;
      if (record.state != CallState::Failed) record.state = CallState::Completed;
    });
  }
}

int64_t Recorder::lost() const {
  const auto& current = ring();
  const auto written = next_.load(std::memory_order_relaxed) - current.first();
  return std::max<int64_t>(0, written - static_cast<int64_t>(current.capacity()));
}

}  // namespace mcr
