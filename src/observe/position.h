// SPDX-License-Identifier: Apache-2.0
// This process's position in the order of a group's calls. Ranks compare it when a call does not end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/call.h"
#include "observe/traffic.h"

namespace mcr {

class Pass;
using Chain = std::vector<std::shared_ptr<Pass>>;

/// A collective, as all ranks of its group must have made it.
struct alignas(64) Entered {             // one cache line
  int64_t seq = 0;                       // among the group's collectives, from 1; for messages: among this rank's own
  int64_t bytes = -1;                    // the data's size as in tables; -1 where ranks may see different sizes
  const std::string* backend = nullptr;  // the candidate that the call named; null: none. Never destroyed
  const std::string* caller = nullptr;   // in detail mode: where the program made the call. Never destroyed
  const std::string* layout = nullptr;   // in detail mode: the tensor's, if not row by row. Never destroyed
  int32_t root = 0;
  int32_t priority = 0;
  Op op = Op::barrier;
  DType dtype = DType::Byte;
  RedOp red = RedOp::SUM;
  bool vectored = false;
  bool asynchronous = false;
  uint64_t history = 0;  // a digest of this collective and all before it, of the values that are equal on all ranks
};

/// One group's calls in this process: their count, the newest collectives, and the chain of passes for the next call.
/// Thread-safe; entering takes a few nanoseconds, as every call does it.
class Position {
 public:
  // Powers of two.
  static constexpr std::size_t kKept = 64;
  static constexpr std::size_t kKeptInDetail = 4096;

  /// `group` and `label` as in Group; they must live as long as the process.
  Position(const std::string& group, const std::string& label, std::vector<int> ranks, int rank);
  Position(const Position&) = delete;
  Position& operator=(const Position&) = delete;

  /// Counts the call and returns its number; kClosed if the group is closed. `backend` and `bytes` as in Entered. If
  /// the group has passes, `*chain` is set to the chain for the call, unless `chain` is null. The call is inside until
  /// leave().
  int64_t enter(const Call& call, const std::string* backend, int64_t bytes,
                std::shared_ptr<const Chain>* chain = nullptr);
  static constexpr int64_t kClosed = -1;
  /// Begins a use of the group's communicators that is no call and also ends with leave(). False: the group is closed.
  bool stay();
  /// True: the group is closed, and this may have been the last call inside, as idle() tells.
  bool leave() noexcept {
    left_.fetch_add(1);
    return closed_.load();
  }
  /// No call can enter any more. Those inside go on.
  void close();
  bool closed() const noexcept { return closed_.load(std::memory_order_relaxed); }
  /// No call is inside.
  bool idle() const;
  /// Withdraws a collective that was refused on this rank before anything was sent: it is no longer counted, unless
  /// another has followed it. In detail mode it still counts, as the comparison may have seen it.
  void withdraw(int64_t seq);
  /// Withdraws a send or receive from the traffic, under the same condition.
  void withdraw_message(int64_t seq);
  /// Sets the chain of calls that get a number from now on; null for none. Earlier calls keep the chain with which they
  /// entered.
  void set_chain(std::shared_ptr<const Chain> chain);
  std::shared_ptr<const Chain> chain() const;

  /// The process of this global rank has ended: no group with it can complete new calls. The first text of a group is
  /// kept. From any thread.
  static void lose(int rank, const std::string& text);
  /// Another process has taken this rank's place: groups made from now on can have it. From any thread.
  static void regain(int rank);
  /// Why the group can make no more calls; null while it can. Never destroyed.
  const std::string* lost() const noexcept { return lost_.load(std::memory_order_acquire); }
  /// Why the newest group with this label can make no more calls; null while it can.
  static const std::string* lost(const std::string& label);
  /// Call before the runtime starts again, with other processes.
  static void forget_losses();

  /// The group has been aborted: waits for its operations end. From any thread.
  void give_up() noexcept { given_up_.store(true, std::memory_order_release); }
  /// Whether the newest group with this label has been aborted.
  static bool given_up(const std::string& label);

  struct Reading {
    int64_t collectives = 0;
    int64_t messages = 0;
    std::vector<Entered> newest;  // the retained collectives from the requested number on, oldest first
  };
  Reading read(int64_t from = 0) const;
  /// In detail mode: the sends and receives since the last call.
  Traffic::Taken take_traffic() const;

  const std::string& group() const { return group_; }
  const std::string& label() const { return label_; }
  const std::vector<int>& ranks() const { return ranks_; }
  int rank() const { return rank_; }
  /// The group's calls follow from another group's, and have one order for each backend alone.
  void derive() noexcept { derived_.store(true, std::memory_order_relaxed); }
  bool derived() const noexcept { return derived_.load(std::memory_order_relaxed); }
  /// Of this object, unique in the process.
  int64_t number() const { return number_; }
  /// In detail mode: how many groups with this name and these ranks there were before it. Equal on the members, which
  /// make groups together.
  int64_t former() const { return former_; }

  /// The group has been destroyed: all() no longer has it, even while the program keeps the object. A later life of the
  /// runtime may have a group with the same name.
  void end() noexcept { ended_.store(true, std::memory_order_relaxed); }
  /// The positions of all groups that have not been destroyed, in the order in which they were made.
  static std::vector<std::shared_ptr<const Position>> all();
  static std::shared_ptr<Position> make(const std::string& group, const std::string& label, std::vector<int> ranks,
                                        int rank);
  /// Whether later groups retain more, and calls can be stopped at any time (MCR_DL_DEBUG=detail). Equal on all ranks.
  static void set_detail(bool detail) noexcept;
  static bool detail() noexcept;
  /// In detail mode: where in the program this thread's next call comes from, if known. Must live as long as the
  /// process.
  static const std::string*& call_site() noexcept;

 private:
  void lose_if_member(int rank, const std::string& text) const;
  static std::shared_ptr<const Position> newest(const std::string& label);
  Entered& place_of(int64_t seq) { return kept_[static_cast<std::size_t>(seq) & (kept_.size() - 1)]; }
  const Entered& place_of(int64_t seq) const { return kept_[static_cast<std::size_t>(seq) & (kept_.size() - 1)]; }
  const std::string& group_;
  const std::string& label_;
  const std::vector<int> ranks_;
  const int rank_;
  int64_t number_ = 0;
  int64_t former_ = 0;
  mutable std::atomic<const std::string*> lost_{nullptr};
  std::atomic<bool> given_up_{false};
  std::atomic<bool> ended_{false};
  std::atomic<bool> derived_{false};
  std::atomic<bool> closed_{false};
  std::atomic<int64_t> left_{0};  // calls and uses that have ended: they are counted without the lock
  mutable std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  int64_t collectives_ = 0;  // guarded by busy_, like all members below
  int64_t messages_ = 0;
  int64_t entered_ = 0;  // calls and uses that have begun
  uint64_t history_ = 0;
  std::shared_ptr<const Chain> chain_;
  std::vector<Entered> kept_;
  const std::unique_ptr<Traffic> traffic_;  // null unless in detail mode
};

}  // namespace mcr
