// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/shm/messages.h"
#include "backends/shm/offers.h"
#include "backends/shm/peer_memory.h"
#include "backends/shm/pipeline.h"
#include "backends/shm/rendezvous.h"
#include "backends/shm/steps.h"
#include "backends/shm/waiting.h"
#include "plugin/backend.h"

namespace mcr::shm {

/// The progress of a collective.
struct Cursor {
  Steps::Position step;
  Pipeline::Position pieces;
};

/// A started collective.
struct Operation {
  Operation(const Call& call, const Cursor& cursor) : call(call), cursor(cursor) {}
  const Call call;
  Cursor cursor;
  std::atomic<bool> done{false};  // read by any thread
};

/// Runs the operations of a communicator. Collectives run in the order of issue; a thread that polls one of them also
/// makes progress for the others. Every method may be called from any thread. Running requests share its ownership.
class Engine : public std::enable_shared_from_this<Engine> {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  Engine(const GroupSpec& spec, Meeting meeting);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  void collective(const Call& call, Lane& lane);
  void message(const Call& call, Lane& lane);
  /// A vectored call whose counts only the two ranks of a pair know: a message from each rank to each other rank.
  void exchange(const Call& call, Lane& lane);

  /// Whether the input lies in the output, or the reverse, so that no block is written before it has been given.
  bool takes_in_place(const Call& call) const;
  /// Whether the call needs few copies, and no thread moves the data of other calls. It may change at any time.
  bool brief(const Call& call) const;
  /// Whether there are more ranks than cores.
  bool shares_cores() const { return waiting_.shares_cores(); }
  /// Makes progress without waiting.
  void progress();
  /// Throws Error if incomplete operations can no longer complete.
  void check();
  /// Sleeps until there may be progress, another thread has completed what the caller waits for (`done`), or `limit`.
  void block(Nanoseconds limit, const std::function<bool()>& done);
  /// Makes all current and later waits fail.
  void abort() noexcept;
  /// Tells the other ranks that this rank makes no more calls. When its calls are complete, the end of its process is
  /// no error.
  void leave() noexcept;

  void abandon(const std::shared_ptr<Operation>& operation) noexcept;
  void abandon(const std::vector<std::shared_ptr<Message>>& messages) noexcept;

 private:
  class Turn;

  bool advance(const Call& call, const Blocks& blocks, Cursor& cursor, Burst& burst);
  bool advance_all(bool brief = false);
  void move_messages(Burst& burst);
  // Calls over(burst) until it is true, at most `polls` times. Wakes the other ranks if something was published: at the
  // end, or early if polling goes on.
  template <class Poll>
  void poll(int polls, Burst burst, const Poll& over);
  bool complete_now(const Call& call, Cursor& cursor, int polls);
  std::shared_ptr<Message> start(const Call& call, bool sends, Buffer buffer, int peer, int tag, Context context);
  void await(const std::vector<std::shared_ptr<Message>>& messages, Lane& lane);
  bool try_progress(bool brief = false);
  bool forked() const;
  // Without the turn, failure_ may be read only after an acquiring load.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  bool aborted() const { return aborted_.load(std::memory_order_relaxed); }
  void check_peers();
  void take_what_is_there();
  bool fail_after_peer();
  void require_sound();
  void note_end();
  void fail(const std::string& text);
  void fail_with_all(const Error& error);

  const std::string group_;
  const int rank_, size_;
  std::unique_ptr<Segment> segment_;
  Peers peers_;
  Waiting waiting_;
  std::atomic<bool> busy_{false};  // held by Turn; guards what follows
  History history_;
  Steps steps_;
  const PeerMemory memory_;
  Pieces pieces_;
  Offers offers_;
  Pipeline pipeline_;
  Messages messages_;
  std::deque<std::shared_ptr<Operation>> queue_;
  const int forks_;
  int exchanges_ = 0;
  bool leaving_ = false;
  bool given_up_ = false;  // a message, since this rank has left
  std::string failure_;    // written before failed_
  std::atomic<bool> failed_{false};
  std::atomic<bool> aborted_{false};
  std::atomic<uint32_t> idle_{0};       // polls without progress
  std::atomic<int64_t> next_check_{0};  // of the peers, in nanoseconds of the steady clock
};

}  // namespace mcr::shm
