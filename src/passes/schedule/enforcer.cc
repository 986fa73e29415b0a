// SPDX-License-Identifier: Apache-2.0
#include "passes/schedule/enforcer.h"

#include <algorithm>
#include <bit>

#include "algorithms/motifs.h"
#include "base/digest.h"
#include "runtime/progress.h"

namespace mcr {

namespace {

constexpr uint32_t kMotifs = MotifForm::kMost;
constexpr std::size_t kDigests = 256;  // the rounds between two comparisons, and by which ranks may be apart
// How long the order waits for a call that the program has not made. While a thread waits, another one may be about to
// make it. Otherwise the program may compute, or be at its end; but it may also wait in a way that is not seen here (by
// a future, or by asking whether a call is complete), in each iteration. So each such wait halves the next one.
constexpr std::chrono::nanoseconds kAwaited = std::chrono::milliseconds(1), kIdle = std::chrono::seconds(1);

// So often the order waits for the same call, which then is not made any more.
constexpr int kMissed = 8;

uint64_t bit(uint32_t motif) { return uint64_t{1} << motif; }

}  // namespace

uint32_t Enforcer::new_lane() {
  const std::lock_guard lock(mutex_);
  return lanes_++;
}

uint64_t Enforcer::set_order(std::vector<PlanPlace> order, uint32_t calls) {
  const std::lock_guard lock(mutex_);
  int64_t most = 0;
  for (const auto& place : order) most = std::max<int64_t>(most, place.ahead);
  order_ = std::move(order);
  ++order_number_;
  made_.assign(calls, 0);
  left_out_.assign(calls, false);
  round_ = -most;
  next_ = 0;
  idle_ = kIdle;
  idled_ = false;
  missed_ = 0;
  by_place_.clear();  // earlier calls are in no plan
  flush_to_ = numbered_;
  statistics_.digest = 0;
  digests_.clear();
  kept_ = !order_.empty();
  end_hold();
  return order_number_;
}

void Enforcer::leave_out(const std::vector<uint32_t>& calls) {
  const std::lock_guard lock(mutex_);
  for (const auto call : calls) left_out_.at(call) = true;
  leave_order();
}

void Enforcer::submit(PlannedCall call) {
  {
    const std::lock_guard lock(mutex_);
    const auto motifs = static_cast<uint32_t>(call.lanes.size());
    const auto place = std::pair(call.iteration, call.call);
    if (call.progress != nullptr) call.progress->poll_often();
    const auto all = motifs == kMotifs ? ~uint64_t{0} : bit(motifs) - 1;
    // Another thread may have set a new order since the call took its turn. No call of the new one is on its lanes.
    const bool earlier = call.order != order_number_;
    const auto number = earlier ? flush_to_ - 1 : numbered_++;
    const auto added = std::make_shared<Pending>(Pending{std::move(call), number, all});
    calls_.insert(std::ranges::upper_bound(calls_, number, {}, [](const Shared& one) { return one->number; }), added);
    pending_count_.store(calls_.size(), std::memory_order_relaxed);
    if (!earlier && place.second < made_.size()) {
      by_place_[place] = added;
      made_[place.second] = place.first + 1;
    }
    ++statistics_.calls;
  }
  drive();
}

void Enforcer::drive() {
  std::vector<Shared> gone;  // perhaps the last references: they may end objects of users, which may make calls
  Lock lock(mutex_);
  if (std::exchange(driven_, true)) return;
  while (step(lock)) continue;
  gone.swap(gone_);
  driven_ = false;
}

// False if nothing more can be done now.
bool Enforcer::step(Lock& lock) { return issue_next(lock) || end_lost(); }

// Issues one motif, or lets the order break.
bool Enforcer::issue_next(Lock& lock) {
  // Another rank may issue later calls of the order first, so these do not wait for a flush.
  const int64_t to = order_.empty() ? numbered_ : flush_to_;
  if (!calls_.empty() && calls_.front()->number < to && flush(lock, to)) return true;
  const auto next = head();
  const auto order = order_number_;
  if (next && next->call != nullptr && !overtakes(*next) && issue(lock, next->call, next->motif)) {
    if (order != order_number_) return true;  // another thread has set a new order meanwhile
    const auto& place = next->call->call;
    const auto where = static_cast<uint64_t>(place.iteration) * made_.size() + place.call;
    statistics_.digest = digest(statistics_.digest, where * kMotifs + next->motif);
    end_hold();
    return true;
  }
  return breaks_order(next);
}

bool Enforcer::issue(Lock& lock, const Shared& call, uint32_t motif) {
  const auto run = call->call.run;
  // The last motifs of a tree may have no message on this rank; after an error, no motif is issued. They count in the
  // order all the same, which is equal on all ranks.
  if (!run->issued()) {
    lock.unlock();
    const bool issued = run->advance(nullptr, static_cast<uint8_t>(motif)) || run->issued();
    lock.lock();
    if (!issued) return false;
  }
  ++statistics_.issued;
  call->unissued &= ~bit(motif);
  if (call->unissued == 0) remove(call);
  return true;
}

// Issues one motif of the calls below `to`, on each lane in the order of calls, as on all ranks.
bool Enforcer::flush(Lock& lock, int64_t to) {
  const auto calls = calls_;  // issue() may remove one
  std::vector<bool> blocked(lanes_);
  for (const auto& call : calls) {
    if (call->number >= to) return false;
    for (uint32_t motif = 0; motif < call->call.lanes.size() && call->unissued != 0; ++motif) {
      const auto lane = call->call.lanes[motif];
      if ((call->unissued & bit(motif)) == 0 || blocked.at(lane)) continue;
      if (issue(lock, call, motif)) return true;
      blocked[lane] = true;
    }
  }
  return false;
}

// The next motif of the order; nothing if there is no order, or no call in it is made any more.
std::optional<Enforcer::Head> Enforcer::head() {
  if (order_.empty()) return std::nullopt;
  for (std::size_t seen = 0; seen < 2 * order_.size(); ++seen) {
    const auto& place = order_[next_];
    if (past(place)) {
      advance();
      continue;
    }
    return Head{pending_at(place), place.motif};
  }
  return std::nullopt;
}

// Whether an earlier call has a motif to come on the lane: one that is in no order, as orders keep their lanes'.
bool Enforcer::overtakes(const Head& head) const {
  const auto lane = head.call->call.lanes[head.motif];
  for (const auto& call : calls_) {
    if (call == head.call) return false;
    for (uint32_t motif = 0; motif < call->call.lanes.size(); ++motif) {
      if (call->call.lanes[motif] == lane && (call->unissued & bit(motif)) != 0) return true;
    }
  }
  return false;
}

bool Enforcer::past(const PlanPlace& place) const {
  const auto iteration = round_ + place.ahead;
  if (iteration < 0 || left_out_[place.call]) return true;
  if (iteration >= made_[place.call]) return false;  // it has not been made
  const auto call = pending_at(place);
  return call == nullptr || (call->unissued & bit(place.motif)) == 0;
}

// The call of this place in the present round; null if it has not been made, or has no motif to come.
Enforcer::Shared Enforcer::pending_at(const PlanPlace& place) const {
  const auto found = by_place_.find({round_ + place.ahead, place.call});
  return found == by_place_.end() ? nullptr : found->second;
}

void Enforcer::advance() {
  missed_ = 0;
  if (++next_ < order_.size()) return;
  next_ = 0;
  if (kept_ && round_ >= 0) digests_.emplace(round_, statistics_.digest);
  if (digests_.size() > kDigests) digests_.erase(digests_.begin());
  ++round_;
  if (!std::exchange(idled_, false)) idle_ = std::min(2 * idle_, kIdle);
}

// Whether the order has waited too long: then the calls made so far leave it. The next one may never be made; or it
// waits for a rank that has left the order, and issues an earlier call first, which this rank would issue later.
bool Enforcer::breaks_order(const std::optional<Head>& head) {
  if (!head || calls_.empty() || calls_.back()->number < flush_to_) return end_hold(), false;
  const auto now = Clock::now();
  if (!held_since_) held_since_ = now;
  const bool made = head->call != nullptr;
  const auto patience = made ? kIdle : this->patience();
  if (now - *held_since_ < patience) return false;
  if (!made && patience > kAwaited) {
    idle_ = std::max(idle_ / 2, kAwaited);
    idled_ = true;
  }
  leave_order();
  ++statistics_.breaks;
  end_hold();
  if (!made && ++missed_ == kMissed) order_.clear();
  return true;
}

// The calls made so far are issued in program order.
void Enforcer::leave_order() {
  flush_to_ = numbered_;
  kept_ = false;
  digests_.clear();
}

std::chrono::nanoseconds Enforcer::patience() const {
  if (synchronizing_ > 0) return std::chrono::nanoseconds(0);
  const bool awaited = std::ranges::any_of(calls_, [](const auto& one) { return one->call.run->expedited(); });
  return awaited ? kAwaited : idle_;
}

// Ends one of the calls that can never be issued, for which the order may wait; false if there is none.
bool Enforcer::end_lost() {
  const auto is_lost = [](const Shared& call) { return call->call.lost && call->call.lost() != nullptr; };
  const auto found = std::ranges::find_if(calls_, is_lost);
  if (found == calls_.end()) return false;
  const auto call = *found;
  // Another thread polls a run without motifs to come.
  if (!call->call.run->issued()) call->call.run->stop(Error(ErrorCode::PeerLost, *call->call.lost()));
  remove(call);
  order_.clear();
  leave_order();
  end_hold();
  return true;
}

void Enforcer::end_hold() {
  if (held_since_) statistics_.held += Clock::now() - *held_since_;
  held_since_.reset();
}

void Enforcer::remove(const Shared& call) {
  gone_.push_back(call);
  if (call->call.progress != nullptr) call->call.progress->poll_seldom();
  std::erase(calls_, call);
  pending_count_.store(calls_.size(), std::memory_order_relaxed);
  const auto found = by_place_.find({call->call.iteration, call->call.call});
  if (found != by_place_.end() && found->second == call) by_place_.erase(found);
}

void Enforcer::expedite() {
  const std::lock_guard lock(mutex_);
  for (const auto& one : calls_) one->call.run->expedite();
}

bool Enforcer::synchronize(std::chrono::nanoseconds limit) {
  {
    const std::lock_guard lock(mutex_);
    ++synchronizing_;
  }
  expedite();
  const bool none = repeat(limit, [this] {
    drive();
    return !pending();
  });
  const std::lock_guard lock(mutex_);
  --synchronizing_;
  return none;
}

std::string Enforcer::described(const Pending& call) {
  const auto& what = call.call;
  auto text = "motif " + std::to_string(std::countr_zero(call.unissued)) + " of ";
  text += std::string(row(what.op).name) + " " + std::to_string(what.seq);
  return what.group == nullptr ? text : text + " of group '" + *what.group + "'";
}

// Of those that have been made: the order waits only briefly for others.
Enforcer::Shared Enforcer::next_to_issue() const {
  if (calls_.empty()) return nullptr;
  if (calls_.front()->number >= flush_to_ && !order_.empty()) {
    if (auto call = pending_at(order_[next_])) return call;
  }
  return calls_.front();
}

std::string Enforcer::first() const {
  const std::lock_guard lock(mutex_);
  const auto call = next_to_issue();
  return call == nullptr ? std::string() : described(*call);
}

std::string Enforcer::behind(const Run& run) const {
  const std::lock_guard lock(mutex_);
  const auto call = next_to_issue();
  return call == nullptr || call->call.run.get() == &run ? std::string() : described(*call);
}

EnforcerStatistics Enforcer::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

std::map<int64_t, uint64_t> Enforcer::digests() const {
  const std::lock_guard lock(mutex_);
  return digests_;
}

}  // namespace mcr
