// SPDX-License-Identifier: Apache-2.0
// Where this process is in the order of a group's calls: what ranks compare when a call does not end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/call.h"

namespace mcr {

/// A collective as all ranks of its group must have made it.
struct alignas(64) Entered {             // one cache line
  int64_t seq = 0;                       // of the group's collectives, from 1 on; of messages: of this rank's own
  int64_t bytes = -1;                    // the message's size as tables have it; -1 where ranks may see different ones
  const std::string* backend = nullptr;  // the candidate that the call named; null: it named none. Never destroyed
  const std::string* caller = nullptr;   // who made the call, in detail. Never destroyed
  const std::string* layout = nullptr;   // of the tensor, in detail, if not row by row. Never destroyed
  int32_t root = 0;
  Op op = Op::barrier;
  DType dtype = DType::Byte;
  RedOp red = RedOp::SUM;
  bool vectored = false;
  bool asynchronous = false;
  uint64_t history = 0;  // a digest of this collective and all before it: what every rank has is equal
};

/// One group's calls in this process: how many there were, and the newest collectives. Thread-safe; entering takes a
/// few nanoseconds, as every call does it.
class Position {
 public:
  // Powers of two.
  static constexpr std::size_t kKept = 64;
  static constexpr std::size_t kKeptInDetail = 4096;

  /// `group` and `label` as Group has them; they must live as long as the process.
  Position(const std::string& group, const std::string& label, std::vector<int> ranks, int rank);
  Position(const Position&) = delete;
  Position& operator=(const Position&) = delete;

  /// Counts the call and returns its number. `backend` and `bytes` as in Entered.
  int64_t enter(const Call& call, const std::string* backend, bool asynchronous, int64_t bytes);

  struct Reading {
    int64_t collectives = 0;
    int64_t messages = 0;
    std::vector<Entered> newest;  // collectives from the asked one on that are kept, oldest first
  };
  Reading read(int64_t from = 0) const;

  const std::string& group() const { return group_; }
  const std::string& label() const { return label_; }
  const std::vector<int>& ranks() const { return ranks_; }
  int rank() const { return rank_; }

  /// Those of the groups that live, in the order in which they were made.
  static std::vector<std::shared_ptr<const Position>> all();
  static std::shared_ptr<Position> make(const std::string& group, const std::string& label, std::vector<int> ranks,
                                        int rank);
  /// Whether later groups keep more, and calls can be stopped at any time (MCR_DL_DEBUG=detail). Equal on all ranks.
  static void set_detail(bool detail) noexcept;
  static bool detail() noexcept;
  /// In detail: where in the program the call comes from that this thread is about to make, if that is known. It must
  /// live as long as the process.
  static const std::string*& call_site() noexcept;

 private:
  class Lock;
  Entered& place_of(int64_t seq) { return kept_[static_cast<std::size_t>(seq) & (kept_.size() - 1)]; }
  const Entered& place_of(int64_t seq) const { return kept_[static_cast<std::size_t>(seq) & (kept_.size() - 1)]; }
  const std::string& group_;
  const std::string& label_;
  const std::vector<int> ranks_;
  const int rank_;
  mutable std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  int64_t collectives_ = 0;  // guarded by busy_, like all that follows
  int64_t messages_ = 0;
  uint64_t history_ = 0;
  std::vector<Entered> kept_;
};

}  // namespace mcr
