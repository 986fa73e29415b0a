// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backends/shm/blocks.h"
#include "backends/shm/peer_memory.h"
#include "backends/shm/segment.h"
#include "base/call.h"
#include "base/error.h"

namespace mcr::shm {

/// Messages of different contexts do not match.
enum class Context : uint16_t { User, Internal, Collective };

/// A started send or receive. It belongs to its request and, until it is complete, to Messages.
struct Message {
  bool sends = false;
  std::byte* data = nullptr;
  int64_t bytes = 0;
  DType dtype = DType::Byte;
  int peer = 0;  // kAnyRank to receive from any rank
  int tag = 0;
  Context context = Context::User;
  uint32_t exchange = 0;  // of a collective: its operation and root, equal on all ranks

  uint64_t id = 0;                  // identifies a send that waits for its receive
  int64_t moved = 0, incoming = 0;  // bytes sent or received so far; the size of the incoming message
  int source = -1;
  std::optional<Error> error;     // written before `done`
  std::atomic<bool> done{false};  // read by any thread
};

/// Sends and receives, in packets through a ring for each pair of ranks. A short message is sent at once (eager). For a
/// long message the sender sends a request first, and the data when the receive is posted, so it never blocks the ring
/// for others. The data goes through the ring, or the receiver reads it out of the sender's memory. A receiver keeps
/// short messages that no receive matches yet; if it keeps too many, the sender sends requests for short messages too.
/// One thread at a time.
class Messages {
 public:
  Messages(Segment& segment, const PeerMemory& memory, int rank);

  /// Starts a message, which may be complete afterwards.
  void start(const std::shared_ptr<Message>& message);
  /// Moves data without waiting.
  void progress(Burst& burst);
  /// Forgets a message that its owner has destroyed.
  void withdraw(const std::shared_ptr<Message>& message);
  void clear();
  /// The error of a message of another exchange than the receive's: the ranks have made different collectives.
  const std::optional<Error>& difference() const { return difference_; }
  /// Whether no started message is incomplete, and no other rank waits for an answer.
  bool idle() const;

 private:
  enum class Kind : uint16_t { Skip, Eager, Ask, Clear, Refuse, Data, Offer, Taken, GivenUp };
  struct Packet {
    Kind kind;
    Context context;
    int32_t tag;
    uint32_t bytes;     // that follow
    uint32_t exchange;  // Message::exchange
    int64_t total;      // of the message
    uint64_t id;
  };
  struct Offered {  // the data of an Offer
    const std::byte* address;
    uint64_t given_up;  // the sender's counter before
  };
  struct Job {
    Packet packet;
    std::shared_ptr<Message> message;  // of an answer: the receive that it ends, if its owner has not destroyed it
  };
  struct Outgoing {
    std::deque<Job> jobs;
    uint64_t written = 0, read = 0;     // positions in the ring; the latter as far as it is known
    uint64_t eager = 0, delivered = 0;  // bytes of eager messages; the latter as far as it is known
    std::map<uint64_t, std::shared_ptr<Message>> asked, offered;
  };
  using Accepted = std::map<uint64_t, std::shared_ptr<Message>>;
  struct Incoming {
    uint64_t read = 0;
    uint64_t delivered = 0;
    Accepted accepted;
    std::deque<std::pair<Packet, Offered>> offers;  // to be read
  };
  struct Early {  // a message that came before its receive
    int peer;
    Packet packet;
    std::vector<std::byte> data;
  };

  int64_t most() const { return segment_.layout().ring() / 4 - static_cast<int64_t>(sizeof(Packet)); }
  bool put(int peer, const Packet& packet, const std::byte* data);
  bool put_data(int peer, Job& job, Burst& burst);
  bool put_offer(int peer, Job& job);
  bool eager(int peer, int64_t bytes);
  void flush(int peer, Burst& burst);
  void drain(int peer, Burst& burst);
  void handle(int peer, const Packet& packet, const std::byte* data);
  bool offers(const Message& message) const;
  void read_offered(int peer, Burst& burst);
  bool read(int peer, const Offered& offer, Message& receive, int64_t bytes);
  void accept(int peer, const Packet& packet, const std::shared_ptr<Message>& receive);
  void deliver(int peer, const Packet& packet, const std::byte* data, Message& receive);
  void admit(int peer, const Packet& packet, const std::byte* data, const std::shared_ptr<Message>& receive);
  std::shared_ptr<Message> finish(int peer, Accepted::iterator accepted);
  std::shared_ptr<Message> take_posted(int peer, const Packet& packet);
  bool take_early(const std::shared_ptr<Message>& receive);
  static Packet answer(Kind kind, const Packet& packet);
  static bool ends_receive(Kind kind);
  static bool matches(const Message& receive, int peer, const Packet& packet);
  static void complete(Message& message, int source);

  Segment& segment_;
  const PeerMemory& memory_;
  const int rank_, size_;
  int first_;  // the rank with which the next turn begins
  uint64_t next_id_ = 1;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::deque<std::shared_ptr<Message>> posted_;
  std::deque<Early> early_;
  std::optional<Error> difference_;
};

}  // namespace mcr::shm
