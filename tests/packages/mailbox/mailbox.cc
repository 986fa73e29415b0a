// SPDX-License-Identifier: Apache-2.0
// A backend of another package: the ranks of a group, on one host, send each other letters through sockets. It has
// send, recv and all_reduce; the core makes the other operations of sends and receives. An example: it copies every
// letter, and accepts connections of any process of the host.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <mutex>

#include "base/reduce.h"
#include "plugin/backend.h"

namespace {

using namespace mcr;

// Letters of the program, of the core's emulations, and of all_reduce never match each other.
enum Channel : int32_t { kProgram, kCore, kReduction };

struct Head {
  int32_t channel;
  int32_t tag;
  int64_t bytes;
};

struct Letter {
  Head head;
  int source;
  std::vector<char> content;
};

/// A receive that has been issued. Receives of one source, channel and tag get its letters in the order of issue.
struct Slot {
  Head head;
  int source;  // kAnyRank: of any rank
  void* into;
  bool filled = false;
  std::string problem;

  bool fits(const Letter& letter) const {
    return letter.head.channel == head.channel && letter.head.tag == head.tag &&
           (source == kAnyRank || source == letter.source);
  }
};

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::Backend, "mailbox: " + what + ": " + std::strerror(errno));
}

void wait_for(int file, std::chrono::milliseconds limit) {
  pollfd entry{file, POLLIN, 0};
  const int ready = poll(&entry, 1, limit.count() > 0 ? static_cast<int>(limit.count()) : -1);
  if (ready == 0) throw Error(ErrorCode::Timeout, "mailbox: timed out while the ranks connected");
  if (ready < 0) fail("poll");
}

// A name in Linux's abstract namespace, which disappears with the socket.
socklen_t name_socket(sockaddr_un& address, const std::string& name) {
  address.sun_family = AF_UNIX;
  address.sun_path[0] = '\0';
  name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

/// One rank's sockets to the others. Thread-safe.
class Office {
 public:
  explicit Office(const GroupSpec& spec) : rank_(spec.rank), peers_(spec.ranks.size()) {
    static std::atomic<int> made{0};
    const auto name = "mailbox-" + std::to_string(getpid()) + "-" + std::to_string(made++);
    sockaddr_un address{};
    const int door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (door < 0) fail("socket");
    const auto length = name_socket(address, name);
    if (bind(door, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(door, spec.size()) != 0)
      fail("listen");
    spec.store->set("name" + std::to_string(rank_), name);
    for (int peer = 0; peer < rank_; ++peer) call_at(peer, spec.store->get("name" + std::to_string(peer)));
    for (int count = rank_ + 1; count < spec.size(); ++count) {
      wait_for(door, spec.timeout);
      const int file = accept4(door, nullptr, nullptr, SOCK_CLOEXEC);
      int32_t peer = 0;
      if (file < 0 || recv(file, &peer, sizeof(peer), MSG_WAITALL) != sizeof(peer)) fail("accept");
      peers_.at(static_cast<std::size_t>(peer)).file = file;
    }
    close(door);
    for (auto& peer : peers_) {
      if (peer.file >= 0) fcntl(peer.file, F_SETFL, O_NONBLOCK);
    }
  }

  ~Office() {
    for (auto& peer : peers_) {
      if (peer.file >= 0) close(peer.file);
    }
  }

  Office(const Office&) = delete;
  Office& operator=(const Office&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  /// Returns the number of bytes that must have left for the letter to have left.
  int64_t post(int to, const Head& head, const void* data) {
    const std::lock_guard lock(mutex_);
    if (to == rank_) {
      const auto* const bytes = static_cast<const char*>(data);
      deliver({head, rank_, {bytes, bytes + head.bytes}});
      return 0;
    }
    auto& peer = peers_.at(static_cast<std::size_t>(to));
    peer.out.append(reinterpret_cast<const char*>(&head), sizeof(head));
    peer.out.append(static_cast<const char*>(data), static_cast<std::size_t>(head.bytes));
    peer.posted += static_cast<int64_t>(sizeof(head)) + head.bytes;
    write_some(to);
    return peer.posted;
  }

  bool posted(int to, int64_t number) {
    const std::lock_guard lock(mutex_);
    move();
    const auto& peer = peers_.at(static_cast<std::size_t>(to));
    if (peer.left < number && peer.gone)
      throw Error(ErrorCode::Backend, "mailbox: rank " + std::to_string(to) + " has gone");
    return peer.left >= number;
  }

  void expect(const std::shared_ptr<Slot>& slot) {
    const std::lock_guard lock(mutex_);
    move();
    for (auto letter = inbox_.begin(); letter != inbox_.end(); ++letter) {
      if (!slot->fits(*letter)) continue;
      fill(*slot, *letter);
      inbox_.erase(letter);
      return;
    }
    slots_.push_back(slot);
  }

  bool filled(const Slot& slot) {
    const std::lock_guard lock(mutex_);
    move();
    if (!slot.problem.empty()) throw Error(ErrorCode::Backend, slot.problem);
    if (!slot.filled && slot.source != kAnyRank && slot.source != rank_ &&
        peers_.at(static_cast<std::size_t>(slot.source)).gone) {
      throw Error(ErrorCode::Backend, "mailbox: rank " + std::to_string(slot.source) + " has gone");
    }
    return slot.filled;
  }

  void forget(const std::shared_ptr<Slot>& slot) {
    const std::lock_guard lock(mutex_);
    slots_.remove(slot);
  }

 private:
  struct Peer {
    int file = -1;
    bool gone = false;
    std::string out, in;
    int64_t posted = 0, left = 0;
  };

  void call_at(int peer, const std::string& name) {
    sockaddr_un address{};
    const int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const auto length = name_socket(address, name);
    const int32_t mine = rank_;
    if (file < 0 || connect(file, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        send(file, &mine, sizeof(mine), MSG_NOSIGNAL) != sizeof(mine)) {
      fail("connect");
    }
    peers_.at(static_cast<std::size_t>(peer)).file = file;
  }

  // Writes and reads what the sockets take and have; never waits.
  void move() {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == rank_) continue;
      write_some(rank);
      read_some(rank);
    }
  }

  void write_some(int rank) {
    auto& peer = peers_.at(static_cast<std::size_t>(rank));
    while (!peer.gone && !peer.out.empty()) {
      const auto count = send(peer.file, peer.out.data(), peer.out.size(), MSG_NOSIGNAL);
      if (count < 0) {
        peer.gone = errno != EAGAIN && errno != EINTR;
        return;
      }
      peer.left += count;
      peer.out.erase(0, static_cast<std::size_t>(count));
    }
  }

  void read_some(int rank) {
    auto& peer = peers_.at(static_cast<std::size_t>(rank));
    std::array<char, 1 << 16> chunk;
    while (!peer.gone) {
      const auto count = recv(peer.file, chunk.data(), chunk.size(), 0);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) break;
      peer.gone = count <= 0;
      if (count > 0) peer.in.append(chunk.data(), static_cast<std::size_t>(count));
    }
    Head head{};
    while (peer.in.size() >= sizeof(head)) {
      std::memcpy(&head, peer.in.data(), sizeof(head));
      const auto whole = sizeof(head) + static_cast<std::size_t>(head.bytes);
      if (peer.in.size() < whole) return;
      const char* const content = peer.in.data() + sizeof(head);
      deliver({head, rank, {content, content + head.bytes}});
      peer.in.erase(0, whole);
    }
  }

  void deliver(Letter letter) {
    for (auto slot = slots_.begin(); slot != slots_.end(); ++slot) {
      if (!(*slot)->fits(letter)) continue;
      fill(**slot, letter);
      slots_.erase(slot);
      return;
    }
    inbox_.push_back(std::move(letter));
  }

  static void fill(Slot& slot, const Letter& letter) {
    slot.source = letter.source;
    slot.filled = true;
    if (letter.head.bytes != slot.head.bytes) {
      slot.problem = "mailbox: expected a message of " + std::to_string(slot.head.bytes) + " bytes from rank " +
                     std::to_string(letter.source) + ", got " + std::to_string(letter.head.bytes);
    } else if (!letter.content.empty()) {
      std::memcpy(slot.into, letter.content.data(), letter.content.size());
    }
  }

  std::mutex mutex_;
  const int rank_;
  std::vector<Peer> peers_;
  std::list<Letter> inbox_;                 // letters that no receive has asked for yet
  std::list<std::shared_ptr<Slot>> slots_;  // receives that no letter has come for yet
};

class Sending : public Request {
 public:
  Sending(std::shared_ptr<Office> office, int to, int64_t number)
      : office_(std::move(office)), to_(to), number_(number) {}
  bool poll() override { return office_->posted(to_, number_); }

 private:
  std::shared_ptr<Office> office_;
  int to_;
  int64_t number_;
};

class Receiving : public Request {
 public:
  Receiving(std::shared_ptr<Office> office, std::shared_ptr<Slot> slot)
      : office_(std::move(office)), slot_(std::move(slot)) {
    office_->expect(slot_);
  }
  ~Receiving() override { office_->forget(slot_); }
  bool poll() override { return office_->filled(*slot_); }
  int source() const override { return slot_->source; }

 private:
  std::shared_ptr<Office> office_;
  std::shared_ptr<Slot> slot_;
};

// Every rank sends its elements to all others, and combines what all have sent in the order of the ranks.
class Reducing : public Request {
 public:
  Reducing(const std::shared_ptr<Office>& office, const Call& call) : call_(call) {
    const auto bytes = call.out.count * size_of(call.dtype);
    const Head head{kReduction, 0, bytes};
    for (int rank = 0; rank < office->size(); ++rank) {
      parts_.emplace_back(static_cast<std::size_t>(bytes));
      if (rank == office->rank()) {
        if (bytes > 0) std::memcpy(parts_.back().data(), call.out.data, parts_.back().size());
        continue;
      }
      waiting_.push_back(std::make_unique<Sending>(office, rank, office->post(rank, head, call.out.data)));
      waiting_.push_back(std::make_unique<Receiving>(
          office, std::make_shared<Slot>(Slot{head, rank, parts_.back().data(), false, {}})));
    }
  }

  bool poll() override {
    while (!waiting_.empty()) {
      if (!waiting_.back()->poll()) return false;
      waiting_.pop_back();
    }
    const int64_t count = call_.out.count;
    std::vector<const void*> sources;
    for (const auto& part : parts_) sources.push_back(part.data());
    if (count > 0) combine_all(call_.out.data, sources, count, call_.dtype, call_.red);
    return true;
  }

 private:
  Call call_;
  std::vector<std::vector<char>> parts_;
  std::vector<std::unique_ptr<Request>> waiting_;
};

class MailboxCommunicator : public OpMethods<MailboxCommunicator> {
 public:
  explicit MailboxCommunicator(const GroupSpec& spec) : office_(std::make_shared<Office>(spec)) {}

  bool supports(const Call& call) const override {
    if (!has(call.op) || call.device.type != DeviceType::CPU) return false;
    return !row(call.op).is(kReduces) || defined(call.dtype, call.red);
  }

  void send(const Call& call, Lane& lane) {
    lane.track(std::make_unique<Sending>(office_, call.root, office_->post(call.root, head(call), call.out.data)));
  }
  void recv(const Call& call, Lane& lane) {
    lane.track(std::make_unique<Receiving>(
        office_, std::make_shared<Slot>(Slot{head(call), call.root, call.out.data, false, {}})));
  }
  void all_reduce(const Call& call, Lane& lane) { lane.track(std::make_unique<Reducing>(office_, call)); }

 private:
  static Head head(const Call& call) {
    return {call.internal ? kCore : kProgram, call.tag, call.out.count * size_of(call.dtype)};
  }

  std::shared_ptr<Office> office_;
};

class MailboxBackend : public Backend {
 public:
  std::string library() const override { return "letters between the processes of one host"; }
  std::unique_ptr<Communicator> connect(const GroupSpec& spec) override {
    return std::make_unique<MailboxCommunicator>(spec);
  }
};

std::unique_ptr<Backend> create(const std::string&) { return std::make_unique<MailboxBackend>(); }

}  // namespace

extern "C" const Plugin mcr_dl_plugin = {kPluginVersion, create};
