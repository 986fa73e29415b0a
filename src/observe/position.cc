// SPDX-License-Identifier: Apache-2.0
#include "observe/position.h"

#include <algorithm>
#include <bit>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include "base/digest.h"
#include "base/immortal.h"
#include "base/spin_lock.h"

namespace mcr {

namespace {

std::atomic<bool> in_detail{false};

struct Living {
  std::mutex mutex;
  std::list<std::pair<int, std::string>> lost;     // ranks, and why; guarded by mutex. Entries are never removed
  std::vector<std::weak_ptr<const Position>> all;  // guarded by mutex
  int64_t made = 0;                                // guarded by mutex
  // In detail mode: the groups so far, by their name and a digest of their ranks. Guarded by mutex.
  std::map<std::pair<std::string, uint64_t>, int64_t> alike;
};

// Never destroyed: groups may be destroyed during process exit.
Living& living() {
  static auto& list = immortal<Living>();
  return list;
}

uint64_t history_after(uint64_t before, const Entered& entered) {
  const auto form = static_cast<uint64_t>(entered.op) | static_cast<uint64_t>(entered.dtype) << 8 |
                    static_cast<uint64_t>(entered.red) << 16 | static_cast<uint64_t>(entered.vectored) << 24 |
                    static_cast<uint64_t>(static_cast<uint32_t>(entered.root)) << 32;
  const auto sizes = std::rotl(static_cast<uint64_t>(entered.bytes), 40) ^
                     static_cast<uint64_t>(static_cast<uint32_t>(entered.priority)) << 25;
  return digest(before, form ^ sizes);
}

}  // namespace

Position::Position(const std::string& group, const std::string& label, std::vector<int> ranks, int rank)
    : group_(group),
      label_(label),
      ranks_(std::move(ranks)),
      rank_(rank),
      kept_(detail() ? kKeptInDetail : kKept),
      traffic_(detail() ? std::make_unique<Traffic>() : nullptr) {}

std::shared_ptr<Position> Position::make(const std::string& group, const std::string& label, std::vector<int> ranks,
                                         int rank) {
  auto made = std::make_shared<Position>(group, label, std::move(ranks), rank);
  const std::lock_guard lock(living().mutex);
  std::erase_if(living().all, [](const auto& one) { return one.expired(); });
  living().all.push_back(made);
  made->number_ = ++living().made;
  if (detail()) {
    uint64_t members = 0;
    for (const auto member : made->ranks_) members = digest(members, static_cast<uint64_t>(member) + 1);
    made->former_ = living().alike[{group, members}]++;
  }
  for (const auto& [lost, text] : living().lost) made->lose_if_member(lost, text);
  return made;
}

void Position::lose_if_member(int rank, const std::string& text) const {
  if (std::find(ranks_.begin(), ranks_.end(), rank) == ranks_.end()) return;
  const std::string* none = nullptr;
  lost_.compare_exchange_strong(none, &text, std::memory_order_acq_rel);
}

void Position::lose(int rank, const std::string& text) {
  const std::lock_guard lock(living().mutex);
  const auto& [lost, reason] = living().lost.emplace_back(rank, text);
  for (const auto& one : living().all) {
    if (const auto position = one.lock()) position->lose_if_member(lost, reason);
  }
}

// The texts stay, as old groups refer to them.
void Position::regain(int rank) {
  const std::lock_guard lock(living().mutex);
  for (auto& [lost, text] : living().lost) {
    if (lost == rank) lost = -1;
  }
}

void Position::forget_losses() {
  // A job that starts anew in this process has other processes.
  const std::lock_guard lock(living().mutex);
  for (auto& [rank, text] : living().lost) rank = -1;
  living().alike.clear();
}

std::shared_ptr<const Position> Position::newest(const std::string& label) {
  const std::lock_guard lock(living().mutex);
  const auto& all = living().all;
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    auto position = one->lock();
    if (position != nullptr && position->label() == label) return position;
  }
  return nullptr;
}

const std::string* Position::lost(const std::string& label) {
  const auto position = newest(label);
  return position == nullptr ? nullptr : position->lost();
}

bool Position::given_up(const std::string& label) {
  const auto position = newest(label);
  return position != nullptr && position->given_up_.load(std::memory_order_acquire);
}

std::vector<std::shared_ptr<const Position>> Position::all() {
  std::vector<std::shared_ptr<const Position>> found;
  const std::lock_guard lock(living().mutex);
  for (const auto& one : living().all) {
    auto position = one.lock();
    if (position != nullptr && !position->ended_.load(std::memory_order_relaxed)) found.push_back(std::move(position));
  }
  return found;
}

void Position::set_detail(bool detail) noexcept { in_detail.store(detail, std::memory_order_relaxed); }

const std::string*& Position::call_site() noexcept {
  thread_local const std::string* site = nullptr;
  return site;
}

bool Position::detail() noexcept { return in_detail.load(std::memory_order_relaxed); }

int64_t Position::enter(const Call& call, const std::string* backend, int64_t bytes,
                        std::shared_ptr<const Chain>* chain) {
  const auto& op = row(call.op);
  const SpinLock lock(busy_);
  if (closed()) [[unlikely]]
    return kClosed;
  if (chain_ != nullptr && chain != nullptr) [[unlikely]]
    *chain = chain_;
  ++entered_;
  if (op.is(kPeer)) {
    ++messages_;
    if (traffic_ != nullptr) [[unlikely]]
      traffic_->add(call, backend, call_site(), messages_);
    return messages_;
  }
  auto& entered = place_of(++collectives_);
  entered.seq = collectives_;
  entered.bytes = bytes;
  entered.backend = backend;
  entered.caller = detail() ? call_site() : nullptr;
  entered.layout = call.layout;
  entered.root = op.is(kRooted) ? call.root : -1;
  entered.priority = call.priority;
  entered.op = call.op;
  entered.dtype = call.dtype;
  entered.red = op.is(kReduces) ? call.red : RedOp::SUM;
  entered.vectored = call.vectored;
  entered.asynchronous = call.asynchronous;
  entered.history = history_ = history_after(history_, entered);
  return entered.seq;
}

bool Position::stay() {
  const SpinLock lock(busy_);
  if (closed()) return false;
  ++entered_;
  return true;
}

// Either leave() sees this or idle() sees that the call has left: both are sequentially consistent.
void Position::close() {
  end();
  const SpinLock lock(busy_);
  closed_.store(true);
}

bool Position::idle() const {
  const SpinLock lock(busy_);
  return entered_ == left_.load();
}

void Position::withdraw(int64_t seq) {
  if (detail()) return;
  const SpinLock lock(busy_);
  if (seq != collectives_) return;
  history_ = seq == 1 ? 0 : place_of(seq - 1).history;
  --collectives_;
}

void Position::withdraw_message(int64_t seq) {
  if (traffic_ == nullptr) return;
  const SpinLock lock(busy_);
  traffic_->withdraw(seq);
}

Traffic::Taken Position::take_traffic() const {
  if (traffic_ == nullptr) return {};
  const SpinLock lock(busy_);
  return traffic_->take();
}

void Position::set_chain(std::shared_ptr<const Chain> chain) {
  const SpinLock lock(busy_);
  chain_.swap(chain);  // the caller destroys the old chain, without the lock
}

std::shared_ptr<const Chain> Position::chain() const {
  const SpinLock lock(busy_);
  return chain_;
}

Position::Reading Position::read(int64_t from) const {
  Reading reading;
  const SpinLock lock(busy_);
  reading.collectives = collectives_;
  reading.messages = messages_;
  const auto oldest = std::max<int64_t>({1, from, collectives_ + 1 - static_cast<int64_t>(kept_.size())});
  for (auto seq = oldest; seq <= collectives_; ++seq) {
    if (place_of(seq).seq == seq) reading.newest.push_back(place_of(seq));  // else the entry is a withdrawn one
  }
  return reading;
}

}  // namespace mcr
