// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/messages.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "backends/shm/blocks.h"
#include "backends/shm/pieces.h"

namespace mcr::shm {

namespace {

constexpr int64_t kEager = 8 << 10;        // bytes of a message that goes without asking
constexpr uint64_t kCredit = 1 << 20;      // bytes of such messages that a receiver keeps per sender
constexpr int64_t kDirect = 64 << 10;      // bytes of a message that the receiver reads in the sender's memory
constexpr int64_t kCostOfMessage = kLine;  // empty messages count too

int64_t elements(const Message& receive) { return receive.bytes / size_of(receive.dtype); }

Error larger(const Message& receive) { return larger_message(elements(receive), receive.dtype); }

Error shorter(const Message& receive, int64_t bytes, int source) {
  const auto element = size_of(receive.dtype);
  const auto received = bytes % element != 0 ? std::nullopt : std::optional(bytes / element);
  return shorter_message(received, elements(receive), receive.dtype, source);
}

Error withdrawn(int source) {
  return {ErrorCode::Backend, "rank " + std::to_string(source) + " of the group has given up a message"};
}

}  // namespace

Messages::Messages(Segment& segment, const PeerMemory& memory, int rank)
    : segment_(segment),
      memory_(memory),
      rank_(rank),
      size_(segment.layout().ranks()),
      first_((rank + 1) % size_),
      outgoing_(static_cast<std::size_t>(size_)),
      incoming_(static_cast<std::size_t>(size_)) {}

void Messages::complete(Message& message, int source) {
  message.source = source;
  message.done.store(true, std::memory_order_release);
}

// --- Sending ---------------------------------------------------------------------------------------------------------

// Writes a packet if the ring has space. A packet never wraps at the end of the ring: a Skip fills the rest.
bool Messages::put(int peer, const Packet& packet, const std::byte* data) {
  auto& out = outgoing_[static_cast<std::size_t>(peer)];
  auto& ring = segment_.ring(rank_, peer);
  const auto capacity = static_cast<uint64_t>(segment_.layout().ring());
  const auto needed = static_cast<uint64_t>(round_up(static_cast<int64_t>(sizeof(Packet)) + packet.bytes, kLine));
  const auto to_end = capacity - out.written % capacity;
  const auto skipped = needed > to_end ? to_end : 0;
  if (out.written + skipped + needed - out.read > capacity) {
    out.read = ring.read.load(std::memory_order_acquire);
    if (out.written + skipped + needed - out.read > capacity) return false;
  }
  auto* const packets = segment_.packets(rank_, peer);
  if (skipped != 0) {
    const Packet skip{Kind::Skip, {}, 0, static_cast<uint32_t>(skipped - sizeof(Packet)), 0, 0, 0};
    std::memcpy(packets + out.written % capacity, &skip, sizeof(skip));
    out.written += skipped;
  }
  auto* const to = packets + out.written % capacity;
  std::memcpy(to, &packet, sizeof(packet));
  copy_bytes(to + sizeof(packet), data, packet.bytes);
  out.written += needed;
  ring.written.store(out.written, std::memory_order_release);
  return true;
}

Messages::Packet Messages::answer(Kind kind, const Packet& packet) {
  auto made = packet;
  made.kind = kind;
  made.bytes = 0;
  return made;
}

// Answers that end a receive. It is complete when its sender can see them: a rank without incomplete calls may leave.
bool Messages::ends_receive(Kind kind) { return kind == Kind::Taken || kind == Kind::Refuse; }

bool Messages::eager(int peer, int64_t bytes) {
  if (bytes > std::min(kEager, most())) return false;
  auto& out = outgoing_[static_cast<std::size_t>(peer)];
  const auto after = out.eager + static_cast<uint64_t>(bytes + kCostOfMessage);
  if (after - out.delivered > kCredit) {
    out.delivered = segment_.ring(rank_, peer).delivered.load(std::memory_order_acquire);
    if (after - out.delivered > kCredit) return false;
  }
  out.eager = after;
  return true;
}

bool Messages::put_data(int peer, Job& job, Burst& burst) {
  auto& message = *job.message;
  do {
    auto packet = job.packet;
    packet.bytes = static_cast<uint32_t>(std::min(most(), message.bytes - message.moved));
    if (!put(peer, packet, message.data + message.moved)) return false;
    message.moved += packet.bytes;
    burst.left -= packet.bytes;
  } while (message.moved < message.bytes);
  return true;
}

bool Messages::put_offer(int peer, Job& job) {
  const auto& message = job.message;
  const Offered offer{message->data, segment_.ring(rank_, peer).given_up.load(std::memory_order_relaxed)};
  auto packet = job.packet;
  packet.bytes = sizeof(offer);
  if (!put(peer, packet, reinterpret_cast<const std::byte*>(&offer))) return false;
  outgoing_[static_cast<std::size_t>(peer)].offered[message->id] = message;
  return true;
}

bool Messages::offers(const Message& message) const {
  return message.bytes >= kDirect && (memory_.readable() || memory_.shared(message.data, message.bytes));
}

void Messages::flush(int peer, Burst& burst) {
  auto& out = outgoing_[static_cast<std::size_t>(peer)];
  while (!out.jobs.empty()) {
    auto& job = out.jobs.front();
    const auto before = out.written;
    const bool whole = job.packet.kind == Kind::Data ? put_data(peer, job, burst)
                       : job.packet.kind == Kind::Offer
                           ? put_offer(peer, job)
                           : put(peer, job.packet, job.message ? job.message->data : nullptr);
    burst.published = burst.published || out.written != before;
    if (!whole) return;
    if (job.packet.kind == Kind::Eager || job.packet.kind == Kind::Data) complete(*job.message, -1);
    if (ends_receive(job.packet.kind) && job.message) complete(*job.message, peer);
    out.jobs.pop_front();
  }
}

// --- Receiving -------------------------------------------------------------------------------------------------------

bool Messages::matches(const Message& receive, int peer, const Packet& packet) {
  return (receive.peer == peer || receive.peer == kAnyRank) && receive.tag == packet.tag &&
         receive.context == packet.context;
}

std::shared_ptr<Message> Messages::take_posted(int peer, const Packet& packet) {
  const auto found = std::ranges::find_if(posted_, [&](const auto& one) { return matches(*one, peer, packet); });
  if (found == posted_.end()) return nullptr;
  auto receive = std::move(*found);
  posted_.erase(found);
  return receive;
}

void Messages::deliver(int peer, const Packet& packet, const std::byte* data, Message& receive) {
  if (packet.exchange != receive.exchange) {
    receive.error = difference_ = different_calls(peer);
  } else if (packet.total > receive.bytes) {
    receive.error = larger(receive);
  } else {
    copy_bytes(receive.data, data, packet.bytes);
    if (packet.total < receive.bytes) receive.error = shorter(receive, packet.total, peer);
  }
  auto& in = incoming_[static_cast<std::size_t>(peer)];
  in.delivered += static_cast<uint64_t>(packet.total + kCostOfMessage);
  segment_.ring(peer, rank_).delivered.store(in.delivered, std::memory_order_release);
  complete(receive, peer);
}

// Answers the request of a long message whose receive is posted.
void Messages::accept(int peer, const Packet& packet, const std::shared_ptr<Message>& receive) {
  const bool same = packet.exchange == receive->exchange;
  auto& jobs = outgoing_[static_cast<std::size_t>(peer)].jobs;
  if (same && packet.total <= receive->bytes) {
    jobs.push_back({answer(Kind::Clear, packet), nullptr});
    receive->incoming = packet.total;
    incoming_[static_cast<std::size_t>(peer)].accepted[packet.id] = receive;
  } else {
    receive->error = same ? larger(*receive) : different_calls(peer);
    if (!same) difference_ = receive->error;
    jobs.push_back({answer(Kind::Refuse, packet), receive});
  }
}

// Gives the first packet of a message, its data or its request, to the receive.
void Messages::admit(int peer, const Packet& packet, const std::byte* data, const std::shared_ptr<Message>& receive) {
  if (packet.kind == Kind::Eager) {
    deliver(peer, packet, data, *receive);
  } else {
    accept(peer, packet, receive);
  }
}

// Takes a receive that was accepted, once all data has come, or there is an error.
std::shared_ptr<Message> Messages::finish(int peer, Accepted::iterator accepted) {
  auto receive = std::move(accepted->second);
  incoming_[static_cast<std::size_t>(peer)].accepted.erase(accepted);
  const bool all = receive->incoming == receive->bytes;
  if (!receive->error && !all) receive->error = shorter(*receive, receive->incoming, peer);
  return receive;
}

// Reads the next bytes of an offered message. False: the sender has ended, which ends the group.
bool Messages::read(int peer, const Offered& offer, Message& receive, int64_t bytes) {
  try {
    // The sender counts all offers that it gives up: an error may be one too many, if that was another message.
    const auto reading = memory_.read(peer, offer.address + receive.moved, receive.data + receive.moved, bytes,
                                      segment_.ring(peer, rank_).given_up, offer.given_up);
    if (reading == Reading::Ended) return false;
    if (reading == Reading::GivenUp) throw withdrawn(peer);
    receive.moved += bytes;
  } catch (const Error& error) {
    receive.error = error;
  }
  return true;
}

// Reads the messages that a rank offers, in the order of the offers.
void Messages::read_offered(int peer, Burst& burst) {
  auto& in = incoming_[static_cast<std::size_t>(peer)];
  while (!in.offers.empty() && burst.left > 0) {
    const auto& [packet, offer] = in.offers.front();
    const auto found = in.accepted.find(packet.id);
    std::shared_ptr<Message> finished;
    if (found != in.accepted.end()) {  // else the receive has been withdrawn
      auto& receive = *found->second;
      const auto bytes = std::min(burst.left, receive.incoming - receive.moved);
      if (!read(peer, offer, receive, bytes)) return;
      burst.left -= bytes;
      burst.published = true;
      if (!receive.error && receive.moved < receive.incoming) return;
      finished = finish(peer, found);
    }
    outgoing_[static_cast<std::size_t>(peer)].jobs.push_back({answer(Kind::Taken, packet), std::move(finished)});
    in.offers.pop_front();
  }
}

void Messages::handle(int peer, const Packet& packet, const std::byte* data) {
  auto& in = incoming_[static_cast<std::size_t>(peer)];
  auto& out = outgoing_[static_cast<std::size_t>(peer)];
  switch (packet.kind) {
    case Kind::Skip:
      return;
    case Kind::Eager:
    case Kind::Ask:
      if (const auto receive = take_posted(peer, packet)) return admit(peer, packet, data, receive);
      early_.push_back({peer, packet, {data, data + packet.bytes}});
      return;
    case Kind::Clear: {
      const auto asked = out.asked.extract(packet.id);
      if (asked) {
        const auto kind = offers(*asked.mapped()) ? Kind::Offer : Kind::Data;
        out.jobs.push_back({answer(kind, packet), asked.mapped()});
      } else {  // the send has been withdrawn
        out.jobs.push_back({answer(Kind::GivenUp, packet), nullptr});
      }
      return;
    }
    case Kind::Refuse:
      if (const auto asked = out.asked.extract(packet.id)) complete(*asked.mapped(), -1);
      return;
    case Kind::Taken:
      if (const auto offered = out.offered.extract(packet.id)) complete(*offered.mapped(), -1);
      return;
    case Kind::Offer: {
      Offered offer;
      std::memcpy(&offer, data, sizeof(offer));
      in.offers.emplace_back(packet, offer);
      return;
    }
    case Kind::GivenUp:
    case Kind::Data: {
      const auto found = in.accepted.find(packet.id);
      if (found == in.accepted.end()) return;  // the receive has been withdrawn
      auto& receive = *found->second;
      if (packet.kind == Kind::GivenUp) {
        receive.error = withdrawn(peer);
      } else {
        copy_bytes(receive.data + receive.moved, data, packet.bytes);
        receive.moved += packet.bytes;
        if (receive.moved < receive.incoming) return;
      }
      return complete(*finish(peer, found), peer);
    }
  }
}

void Messages::drain(int peer, Burst& burst) {
  auto& in = incoming_[static_cast<std::size_t>(peer)];
  auto& ring = segment_.ring(peer, rank_);
  const auto capacity = static_cast<uint64_t>(segment_.layout().ring());
  const auto* const packets = segment_.packets(peer, rank_);
  const auto written = ring.written.load(std::memory_order_acquire);
  while (in.read != written) {
    const auto* const from = packets + in.read % capacity;
    Packet packet;
    std::memcpy(&packet, from, sizeof(packet));
    handle(peer, packet, from + sizeof(packet));
    in.read += static_cast<uint64_t>(round_up(static_cast<int64_t>(sizeof(packet)) + packet.bytes, kLine));
    ring.read.store(in.read, std::memory_order_release);
    burst.left -= packet.bytes;
    burst.published = true;
  }
}

bool Messages::take_early(const std::shared_ptr<Message>& receive) {
  const auto found =
      std::ranges::find_if(early_, [&](const Early& one) { return matches(*receive, one.peer, one.packet); });
  if (found == early_.end()) return false;
  const auto early = std::move(*found);
  early_.erase(found);
  admit(early.peer, early.packet, early.data.data(), receive);
  return true;
}

// --- Both ------------------------------------------------------------------------------------------------------------

void Messages::start(const std::shared_ptr<Message>& message) {
  if (!message->sends) {
    if (!take_early(message)) posted_.push_back(message);
    return;
  }
  auto& out = outgoing_[static_cast<std::size_t>(message->peer)];
  Packet packet{Kind::Eager, message->context, message->tag, 0, message->exchange, message->bytes, 0};
  if (eager(message->peer, message->bytes)) {
    packet.bytes = static_cast<uint32_t>(message->bytes);
    if (out.jobs.empty() && put(message->peer, packet, message->data)) return complete(*message, -1);
  } else {
    packet.kind = Kind::Ask;
    packet.id = message->id = next_id_++;
    out.asked[message->id] = message;
  }
  out.jobs.push_back({packet, message});
}

// A turn may exceed its burst by what the rings hold. The next turn begins with the rank behind the one at which the
// burst was used up, so that no rank waits for the data of another one.
void Messages::progress(Burst& burst) {
  const int first = first_;
  for (int i = 0; i < size_; ++i) {
    const int peer = (first + i) % size_;
    if (peer == rank_) continue;
    drain(peer, burst);
    read_offered(peer, burst);
    flush(peer, burst);
    if (burst.left > 0) continue;
    first_ = (peer + 1) % size_;
    return;
  }
}

// The receiver of a send that it has accepted learns of the withdrawal. A sender still learns of the end of a receive.
void Messages::withdraw(const std::shared_ptr<Message>& message) {
  std::erase(posted_, message);
  for (auto& in : incoming_) std::erase_if(in.accepted, [&](const auto& entry) { return entry.second == message; });
  for (int peer = 0; peer < size_; ++peer) {
    auto& out = outgoing_[static_cast<std::size_t>(peer)];
    const auto given_up = std::erase_if(out.offered, [&](const auto& entry) { return entry.second == message; });
    if (given_up > 0) segment_.ring(rank_, peer).given_up.fetch_add(given_up);
    std::erase_if(out.asked, [&](const auto& entry) { return entry.second == message; });
    for (auto job = out.jobs.begin(); job != out.jobs.end();) {
      if (job->message != message) {
        ++job;
      } else if (job->packet.kind == Kind::Data || job->packet.kind == Kind::Offer) {
        *job++ = {answer(Kind::GivenUp, job->packet), nullptr};
      } else if (ends_receive(job->packet.kind)) {
        (job++)->message = nullptr;
      } else {
        if (job->packet.kind == Kind::Eager) out.eager -= static_cast<uint64_t>(message->bytes + kCostOfMessage);
        job = out.jobs.erase(job);
      }
    }
  }
}

bool Messages::idle() const {
  return posted_.empty() && std::ranges::all_of(incoming_, [](const auto& in) { return in.accepted.empty(); }) &&
         std::ranges::all_of(
             outgoing_, [](const auto& out) { return out.jobs.empty() && out.asked.empty() && out.offered.empty(); });
}

void Messages::clear() {
  posted_.clear();
  for (auto& in : incoming_) {
    in.accepted.clear();
    in.offers.clear();
  }
  for (int peer = 0; peer < size_; ++peer) {
    auto& out = outgoing_[static_cast<std::size_t>(peer)];
    if (!out.offered.empty()) segment_.ring(rank_, peer).given_up.fetch_add(out.offered.size());
    out.offered.clear();
    out.asked.clear();
    out.jobs.clear();
  }
}

}  // namespace mcr::shm
