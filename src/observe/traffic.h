// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/call.h"

namespace mcr {

/// The sends and receives that this process has made in a group, until they are taken for the comparison with the other
/// ranks (MCR_DL_DEBUG=detail). Not thread-safe.
class Traffic {
 public:
  /// The most runs that are kept; untaken ones are 8 MiB then.
  static constexpr std::size_t kMost = 1 << 17;

  /// Messages that match messages of one rank in one order.
  struct Stream {
    bool sends = false;
    int peer = 0;  // a group rank. kAnyRank: this process receives from any rank, see Traffic::add()
    int tag = 0;
    const std::string* backend = nullptr;  // as in Entered
    auto operator<=>(const Stream&) const = default;
  };
  /// Equal messages that follow each other in their stream.
  struct Run {
    Stream stream;
    int64_t bytes = 0;
    const std::string* caller = nullptr;  // as in Entered
    const std::string* layout = nullptr;  // as in Entered
    int64_t count = 0;
    int64_t last = 0;  // the number of the last message; 0 if that was withdrawn
    DType dtype = DType::Byte;
  };
  struct Taken {
    std::vector<Run> runs;  // in each stream's order
    bool lost = false;      // messages are missing, in this call or an earlier one
  };

  /// Adds a send or receive with its number. Once the process receives from any rank with some tag, it is not known
  /// which message a later receive with this tag gets: all of these then belong to the stream of kAnyRank.
  void add(const Call& call, const std::string* backend, const std::string* caller, int64_t number);
  /// Removes a message that was refused before anything was sent.
  void withdraw(int64_t number);
  /// Hands over what has been added since the last call.
  Taken take();

 private:
  std::vector<Run> runs_;
  std::map<Stream, std::size_t> newest_;                      // the last run of each stream in runs_
  std::set<std::pair<int, const std::string*>> from_anyone_;  // tags and backends
  bool lost_ = false;
};

}  // namespace mcr
