// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/engine.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/pool.h"

namespace mcr::shm {

namespace {

using std::chrono::steady_clock;

// How often a waiting rank checks that the processes of the other ranks are alive.
constexpr std::chrono::milliseconds kCheck{50};
constexpr uint32_t kPollsPerCheck = 256;
// Sleeping ranks are woken after this many polls at the latest, or by the end of the call: then the writes have left
// the core, and the fence costs little.
constexpr int kPollsBeforeWake = 16;
// A started call polls about as long as it takes to leave it to others.
constexpr int kPollsAtStart = 16;
constexpr int kYields = 8;

std::atomic<int> forks{0};  // that led to this process

int count_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); }); });
  return forks.load(std::memory_order_relaxed);
}

// Owns the engine until a poll sees the end, so that a Work which the program keeps does not keep the group's memory.
class EngineRequest : public Request {
 public:
  explicit EngineRequest(std::shared_ptr<Engine> engine) : engine_(std::move(engine)), known_(engine_) {}

  // While another thread may poll.
  bool block(std::chrono::nanoseconds limit) override {
    if (const auto engine = known_.lock()) engine->block(limit, [this] { return done(); });
    return true;
  }

 protected:
  virtual bool done() const = 0;
  // Not while the operation runs.
  void release() { engine_.reset(); }
  Engine& engine() { return *engine_; }

 private:
  std::shared_ptr<Engine> engine_;
  const std::weak_ptr<Engine> known_;
};

class OperationRequest final : public EngineRequest {
 public:
  OperationRequest(std::shared_ptr<Engine> engine, std::shared_ptr<Operation> operation)
      : EngineRequest(std::move(engine)), operation_(std::move(operation)) {}
  ~OperationRequest() override {
    if (!done()) engine().abandon(operation_);
  }

  bool poll() override {
    if (!done()) engine().progress();
    if (done()) return release(), true;
    engine().check();
    return false;
  }

 private:
  bool done() const override { return operation_->done.load(std::memory_order_acquire); }

  std::shared_ptr<Operation> operation_;
};

class MessagesRequest final : public EngineRequest {
 public:
  MessagesRequest(std::shared_ptr<Engine> engine, std::vector<std::shared_ptr<Message>> messages)
      : EngineRequest(std::move(engine)), messages_(std::move(messages)) {}
  ~MessagesRequest() override {
    if (!done()) engine().abandon(messages_);
  }

  bool poll() override {
    if (!done()) engine().progress();
    const bool complete = done();
    if (complete) release();
    for (const auto& message : messages_) {
      if ((complete || ends_all(*message)) && message->error) throw Error(*message->error);
    }
    if (!complete) engine().check();
    return complete;
  }
  int source() const override { return messages_.size() == 1 ? messages_.front()->source : -1; }

 private:
  // After an error other than a wrong size, the other messages of an exchange may never come.
  static bool ends_all(const Message& message) {
    return message.done.load(std::memory_order_acquire) && message.error && message.error->code() == ErrorCode::Backend;
  }
  bool done() const override {
    return std::ranges::all_of(messages_,
                               [](const auto& message) { return message->done.load(std::memory_order_acquire); });
  }

  std::vector<std::shared_ptr<Message>> messages_;
};

}  // namespace

/// The right to use the engine's parts. A holder never waits for other ranks for long.
class Engine::Turn {
 public:
  explicit Turn(Engine& engine) : engine_(engine) {
    for (int polls = 0; !take(); ++polls) {
      pause();
      if (polls % 64 == 63) sched_yield();
    }
  }
  Turn(Engine& engine, std::try_to_lock_t) : engine_(engine) { take(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (owns_) engine_.busy_.store(false, std::memory_order_release);
  }
  bool owns() const { return owns_; }

 private:
  bool take() {
    owns_ = !engine_.busy_.load(std::memory_order_relaxed) && !engine_.busy_.exchange(true, std::memory_order_acquire);
    return owns_;
  }

  Engine& engine_;
  bool owns_ = false;
};

Engine::Engine(const GroupSpec& spec, Meeting meeting)
    : group_(spec.name),
      rank_(spec.rank),
      size_(spec.size()),
      segment_(std::move(meeting.segment)),
      peers_(std::move(meeting.peers)),
      waiting_(*segment_, rank_, meeting.cores, meeting.remote_fences),
      steps_(*segment_, history_, rank_),
      memory_(std::move(meeting.processes), std::move(meeting.heaps)),
      pieces_(*segment_, rank_),
      offers_(*segment_, rank_),
      pipeline_(*segment_, history_, pieces_, offers_, memory_, rank_, meeting.streams),
      messages_(*segment_, memory_, rank_),
      forks_(count_forks()) {}

Engine::~Engine() {
  if (!forked()) peers_.shut_down();
}

// A process that was forked from the group's shares its memory, where the group goes on: it must write nothing there.
// Calls and waits do not get here then (Stop), but objects may end.
bool Engine::forked() const { return forks.load(std::memory_order_relaxed) != forks_; }

// --- Collectives -----------------------------------------------------------------------------------------------------

bool Engine::advance(const Call& call, const Blocks& blocks, Cursor& cursor, Burst& burst) {
  try {
    if (Steps::takes(blocks)) return steps_.advance(call, blocks, cursor.step, burst.published);
    return pipeline_.advance(call, blocks, cursor.pieces, burst);
  } catch (const Error& error) {
    fail_with_all(error);
    return false;
  }
}

template <class Poll>
void Engine::poll(int polls, Burst burst, const Poll& over) {
  for (int done = 0; done < polls && burst.left > 0; ++done) {
    if (over(burst)) break;
    if (burst.published && done >= kPollsBeforeWake) {
      waiting_.wake();
      burst.published = false;
    }
    pause();
  }
  if (burst.published) waiting_.wake();
}

bool Engine::complete_now(const Call& call, Cursor& cursor, int polls) {
  const Blocks blocks(call, rank_, size_);
  bool complete = false;
  poll(polls, {.left = Burst::kFirst}, [&](Burst& burst) {
    complete = advance(call, blocks, cursor, burst);
    return complete || failed();
  });
  return complete;
}

void Engine::collective(const Call& call, Lane& lane) {
  const Turn turn(*this);
  require_sound();
  Cursor cursor;
  if (queue_.empty() &&
      complete_now(call, cursor, lane.blocking() ? waiting_.polls() : std::min(kPollsAtStart, waiting_.polls())))
    return;
  if (failed()) throw Error(ErrorCode::Backend, failure_);
  auto later = make_pooled<Operation>(call, cursor);
  queue_.push_back(later);
  lane.track(std::make_unique<OperationRequest>(shared_from_this(), std::move(later)));
}

bool Engine::takes_in_place(const Call& call) const {
  const Blocks blocks(call, rank_, size_);
  if (call.op == Op::all_gather) return call.in.data == blocks.taken(rank_);
  return call.op == Op::reduce_scatter && call.out.data == blocks.given(rank_);
}

bool Engine::brief(const Call& call) const {
  return !row(call.op).is(kPeer) && Steps::takes(Blocks(call, rank_, size_)) && !busy_.load(std::memory_order_relaxed);
}

// --- Messages --------------------------------------------------------------------------------------------------------

std::shared_ptr<Message> Engine::start(const Call& call, bool sends, Buffer buffer, int peer, int tag,
                                       Context context) {
  auto message = make_pooled<Message>();
  message->sends = sends;
  message->data = static_cast<std::byte*>(buffer.data);
  message->bytes = buffer.count * size_of(call.dtype);
  message->dtype = call.dtype;
  message->peer = peer;
  message->tag = tag;
  message->context = context;
  if (context == Context::Collective) {
    const auto root = row(call.op).is(kRooted) ? static_cast<uint32_t>(call.root) : 0;
    message->exchange = static_cast<uint32_t>(call.op) | root << 8;
  }
  messages_.start(message);
  return message;
}

void Engine::await(const std::vector<std::shared_ptr<Message>>& messages, Lane& lane) {
  const auto done = [&] {
    return std::ranges::all_of(messages, [](const auto& message) { return message->done.load(); });
  };
  const Burst burst{.left = Burst::kFirst, .published = true};  // start() may have sent
  poll(lane.blocking() ? waiting_.polls() : 1, burst, [&](Burst& now) {
    move_messages(now);
    return done() || failed();
  });
  const bool sound = std::ranges::none_of(messages, [](const auto& message) { return message->error.has_value(); });
  if (done() && sound) {
    const bool receive = messages.size() == 1 && !messages.front()->sends;
    if (receive && lane.blocking()) lane.set_source(messages.front()->source);
    if (!receive || lane.blocking()) return;
  }
  lane.track(std::make_unique<MessagesRequest>(shared_from_this(), messages));
}

void Engine::message(const Call& call, Lane& lane) {
  const Turn turn(*this);
  require_sound();
  const auto context = call.internal ? Context::Internal : Context::User;
  await({start(call, call.op == Op::send, call.out, call.root, call.tag, context)}, lane);
}

void Engine::exchange(const Call& call, Lane& lane) {
  const Turn turn(*this);
  require_sound();
  const bool all = call.op == Op::all_to_all;
  const bool root = call.root == rank_;
  const bool gives_all = all || (call.op == Op::scatter && root);
  const bool takes_all = all || (call.op == Op::gather && root);
  const int tag = exchanges_;
  exchanges_ = (exchanges_ + 1) & 0x7FFFFFFF;
  std::vector<std::shared_ptr<Message>> messages;
  for (int i = 0; i < size_; ++i) {
    const int peer = (rank_ + i) % size_;
    const bool gives = gives_all || (call.op == Op::gather && peer == call.root);
    const bool takes = takes_all || (call.op == Op::scatter && peer == call.root);
    const auto from = call.in_counts.empty() ? call.in : in_block(call, size_, peer);
    const auto to = call.out_counts.empty() ? call.out : out_block(call, size_, peer);
    if (peer == rank_) {
      if (gives && takes) {
        copy_bytes(static_cast<std::byte*>(to.data), static_cast<const std::byte*>(from.data),
                   to.count * size_of(call.dtype));
      }
      continue;
    }
    if (takes) messages.push_back(start(call, false, to, peer, tag, Context::Collective));
    if (gives) messages.push_back(start(call, true, from, peer, tag, Context::Collective));
  }
  if (!messages.empty()) await(messages, lane);
}

// --- Waiting ---------------------------------------------------------------------------------------------------------

// With the turn.
void Engine::move_messages(Burst& burst) {
  messages_.progress(burst);
  if (messages_.difference() && !failed()) [[unlikely]]
    fail_with_all(*messages_.difference());
}

// With the turn. True if other ranks may wait for this progress, or if an operation is complete. `brief`: advances only
// small collectives, and those behind large ones wait.
bool Engine::advance_all(bool brief) {
  Burst messages, burst;  // a large message does not hold up the collectives
  bool some = false;
  if (!brief) move_messages(messages);
  burst.published = messages.published;
  while (!queue_.empty() && burst.left > 0) {
    auto& first = *queue_.front();
    const Blocks blocks(first.call, rank_, size_);
    if (brief && !Steps::takes(blocks)) break;
    if (!advance(first.call, blocks, first.cursor, burst)) break;
    queue_.front()->done.store(true, std::memory_order_release);
    queue_.pop_front();
    some = true;
  }
  if (burst.published) waiting_.wake();
  if (leaving_) [[unlikely]]
    note_end();
  return burst.published || some;
}

bool Engine::try_progress(bool brief) {
  const Turn turn(*this, std::try_to_lock);
  if (!turn.owns() || failed() || aborted() || !advance_all(brief)) return false;
  poll_again_soon();
  return true;
}

void Engine::progress() {
  const bool brief = BriefPolls::here();
  if (try_progress(brief) || brief) return;
  if ((idle_.fetch_add(1, std::memory_order_relaxed) + 1) % kPollsPerCheck == 0) check_peers();
}

void Engine::block(Nanoseconds limit, const std::function<bool()>& done) {
  const auto begin = steady_clock::now();
  const auto patience = std::min<Nanoseconds>(limit, waiting_.patience());
  while (patience > Nanoseconds(0)) {
    for (int i = 0; i < 32; ++i) {
      if (done() || try_progress()) return;
      pause();
    }
    if (steady_clock::now() - begin >= patience) break;
  }
  for (int i = 0; i < kYields; ++i) {
    sched_yield();
    if (done() || try_progress()) return;
  }
  // This rank's other threads wake no thread here. So the last look takes the turn, even if that means waiting for it,
  // and then asks whether another thread has completed the operation: everything after it is another rank's write,
  // which wakes.
  waiting_.sleep(std::min<Nanoseconds>(limit, kCheck), [&] {
    const Turn turn(*this);
    return aborted() || failed() || advance_all() || done();
  });
  check_peers();
}

// --- Faults ----------------------------------------------------------------------------------------------------------

void Engine::check() {
  if (aborted()) [[unlikely]] {
    const Turn turn(*this);
    require_sound();
  }
  if (failed_.load(std::memory_order_acquire)) [[unlikely]]
    throw Error(ErrorCode::Backend, failure_);
}

// With the turn, since the thread that had it before may have failed. A call that began after a failure could match a
// call of another rank that it does not belong to.
void Engine::require_sound() {
  if (aborted()) [[unlikely]]
    fail("the group has been aborted");
  if (failed()) [[unlikely]]
    throw Error(ErrorCode::Backend, failure_);
}

void Engine::check_peers() {
  const auto now = steady_clock::now().time_since_epoch();
  const auto stamp = std::chrono::duration_cast<Nanoseconds>(now).count();
  if (stamp < next_check_.load(std::memory_order_relaxed)) return;
  next_check_.store(stamp + Nanoseconds(kCheck).count(), std::memory_order_relaxed);
  if (fail_after_peer()) return;
  const auto gone = peers_.gone();
  // A rank may have left early because of another one that has died, which is named then.
  for (const uint32_t left : {uint32_t{0}, Bell::kEarly}) {
    const auto found = std::ranges::find_if(
        gone, [&](int rank) { return segment_->bell(rank).left.load(std::memory_order_acquire) == left; });
    if (found == gone.end()) continue;
    const Turn turn(*this);
    take_what_is_there();
    return fail("rank " + std::to_string(*found) + " of group '" + group_ + "' has " +
                (left == Bell::kEarly ? "left it after an error, or before the end of its calls" : "died"));
  }
}

// With the turn, before this rank fails as another one has ended or failed: the data that it wrote before is valid.
void Engine::take_what_is_there() {
  while (!failed() && advance_all()) continue;
}

// Fails if another rank has: that rank takes no part in this call or in a later one.
bool Engine::fail_after_peer() {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || segment_->bell(peer).failed.load(std::memory_order_acquire) == 0) continue;
    const Turn turn(*this);
    take_what_is_there();
    if (!queue_.empty() || !messages_.idle())
      fail("rank " + std::to_string(peer) + " of group '" + group_ + "' takes part no more, after an error there");
    return true;
  }
  return false;
}

// With the turn. Keeps the first failure; the memory of callers is not accessed after it.
void Engine::fail(const std::string& text) {
  if (failed()) return;
  offers_.withdraw();
  queue_.clear();
  messages_.clear();
  failure_ = text;
  failed_.store(true, std::memory_order_release);
}

// With the turn. The other ranks fail in the next call in which they wait.
void Engine::fail_with_all(const Error& error) {
  fail(error.what());
  segment_->bell(rank_).failed.store(1, std::memory_order_release);
  waiting_.wake();
}

void Engine::abort() noexcept {
  aborted_.store(true, std::memory_order_relaxed);
  waiting_.wake_own();
}

void Engine::leave() noexcept {
  if (forked()) return;
  const Turn turn(*this);
  leaving_ = true;
  try {
    // This rank may not have looked yet at what ends its last calls.
    if (!failed() && !aborted()) advance_all();
  } catch (const std::exception&) {  // no memory: some calls stay incomplete
  }
  note_end();
  // Not only in the end: requests that have failed, or are incomplete, own this object.
  if (failed()) peers_.shut_down();
}

// With the turn, once this rank has left.
void Engine::note_end() {
  const bool clean = !failed() && !given_up_ && queue_.empty() && messages_.idle();
  segment_->bell(rank_).left.store(clean ? Bell::kClean : Bell::kEarly, std::memory_order_release);
}

void Engine::abandon(const std::shared_ptr<Operation>& operation) noexcept {
  if (forked()) return;
  const Turn turn(*this);
  if (failed() || operation->done.load(std::memory_order_relaxed)) return;
  fail("group '" + group_ + "': this rank has given up an earlier " + std::string(row(operation->call.op).name) +
       " before it was complete");
}

void Engine::abandon(const std::vector<std::shared_ptr<Message>>& messages) noexcept {
  if (forked()) return;
  const Turn turn(*this);
  for (const auto& message : messages) {
    if (message->done.load(std::memory_order_relaxed)) continue;
    messages_.withdraw(message);
    given_up_ = given_up_ || leaving_;
  }
}

}  // namespace mcr::shm
