// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <vector>

#include "backends/shm/peer_memory.h"
#include "backends/shm/segment.h"
#include "plugin/backend.h"

namespace mcr::shm {

/// The processes of the other ranks. A connection to each stays open, which shows when a process ends.
class Peers {
 public:
  struct Peer {
    File socket;   // none for this rank
    File process;  // none if the system has no such descriptors, or the peer is in another PID namespace
  };

  Peers() = default;
  explicit Peers(std::vector<Peer> peers) : peers_(std::move(peers)) {}
  /// The ranks whose process has ended, or that have closed their connection. A system call; any thread.
  std::vector<int> gone() const;
  /// Ends the connections, so that the other ranks see this one in gone(): a forked process may have copies of them,
  /// which keep them open after this process has closed its own. Any thread.
  void shut_down() const noexcept;

 private:
  std::vector<Peer> peers_;
};

struct Meeting {
  std::unique_ptr<Segment> segment;
  Peers peers;
  bool streams = false;          // pieces are written past the caches (Pipeline)
  int cores = 1;                 // that all ranks together may run on
  std::vector<pid_t> processes;  // as of PeerMemory
  std::vector<Heap> heaps;       // as of PeerMemory
  bool remote_fences = false;    // the system gives all ranks fences on the cores of the others (Waiting)
};

/// Connects the ranks of a group on one host: they exchange addresses through the store, connect to each other and map
/// the memory that the first rank allocates, at most its `most()` bytes. Collective; if a rank fails, or its `most`
/// throws an Error, all ranks throw one Error.
Meeting meet(const GroupSpec& spec, const std::function<int64_t()>& most);

}  // namespace mcr::shm
