// SPDX-License-Identifier: Apache-2.0
#include "comm.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "elements.h"

namespace standin {

namespace {

constexpr std::array<const char*, 9> kFunctionNames = {"a send or receive", "ncclBroadcast", "ncclAllReduce",
                                                       "ncclReduce",        "ncclAllGather", "ncclReduceScatter",
                                                       "ncclAlltoAll",      "ncclGather",    "ncclScatter"};

bool reduces(Function function) { return function == AllReduce || function == Reduce || function == ReduceScatter; }

/// Whether rank `from` has data for rank `to`.
bool flows(const Call& call, int from, int to) {
  if (call.function == Broadcast || call.function == Scatter) return from == call.root;
  if (call.function == Reduce || call.function == Gather) return to == call.root;
  return true;
}

/// Where in a buffer of blocks the one for `peer` starts, if it is a buffer of blocks.
std::size_t place(bool blocks, int peer, std::size_t bytes) {
  return blocks ? bytes * static_cast<std::size_t>(peer) : 0;
}

std::size_t source(const Call& call, int peer, std::size_t bytes) {
  const bool blocks = call.function == ReduceScatter || call.function == AlltoAll || call.function == Scatter;
  return place(blocks, peer, bytes);
}

std::size_t target(const Call& call, int peer, std::size_t bytes) {
  const bool blocks = call.function == AllGather || call.function == AlltoAll || call.function == Gather;
  return place(blocks, peer, bytes);
}

}  // namespace

std::string Header::text() const {
  std::string text = std::string(kFunctionNames[static_cast<std::size_t>(function)]) + "(count " +
                     std::to_string(count) + ", " + kTypeNames[static_cast<std::size_t>(type)];
  if (op >= 0) text += std::string(", ") + kOpNames[static_cast<std::size_t>(op)];
  if (root >= 0) text += ", root " + std::to_string(root);
  return text + ")";
}

int Comm::fail(int result, const std::string& text) {
  segment.fail(result, text);
  return segment.failure() == 0 ? result : segment.failure();
}

Batch::Batch(std::shared_ptr<Comm> comm)
    : comm_(std::move(comm)),
      outgoing_(static_cast<std::size_t>(comm_->size)),
      incoming_(static_cast<std::size_t>(comm_->size)) {}

void Batch::send(const Header& header, const std::byte* data, int peer) {
  outgoing_[static_cast<std::size_t>(peer)].push_back({header, const_cast<std::byte*>(data)});
}

void Batch::receive(const Header& header, std::byte* data, int peer) {
  incoming_[static_cast<std::size_t>(peer)].push_back({header, data});
}

void Batch::add(const Call& call) {
  const Header header{call.function, call.type,  std::min<int>(call.op, Created),
                      call.root,     call.count, call.count * size_of(call.type)};
  return reduces(call.function) ? reduce(call, header) : move(call, header);
}

void Batch::move(const Call& call, const Header& header) {
  const int me = comm_->rank;
  Header bare = header;
  bare.bytes = 0;
  for (int peer = 0; peer < comm_->size; ++peer) {
    std::byte* const to = call.out + target(call, peer, header.bytes);
    const std::byte* const from = call.in + source(call, peer, header.bytes);
    if (peer == me) {
      if (flows(call, me, me)) finish_.emplace_back([=, size = header.bytes] { std::memmove(to, from, size); });
      continue;
    }
    send(flows(call, me, peer) ? header : bare, from, peer);
    receive(header, to, peer);
  }
}

void Batch::reduce(const Call& call, const Header& header) {
  const auto ranks = static_cast<std::size_t>(comm_->size);
  const int me = comm_->rank;
  const std::size_t blocks = call.function == ReduceScatter ? ranks : 1;
  // What this rank contributes, and what it gets: one block from each rank.
  auto own = std::make_shared<std::vector<std::byte>>(call.in, call.in + header.bytes * blocks);
  if (call.op >= Created) {
    const auto index = static_cast<std::size_t>(call.op - Created);
    const void* const device = comm_->pointers[index];
    const auto* factor = device == nullptr ? comm_->factors[index].data() : static_cast<const std::byte*>(device);
    scale(call.type, factor, own->data(), call.count * blocks);
  }
  auto got = std::make_shared<std::vector<std::byte>>(header.bytes * ranks);
  std::vector<const std::byte*> parts(ranks);
  Header bare = header;
  bare.bytes = 0;
  for (int peer = 0; peer < comm_->size; ++peer) {
    const std::byte* const from = own->data() + source(call, peer, header.bytes);
    std::byte* const to = got->data() + place(true, peer, header.bytes);
    parts[static_cast<std::size_t>(peer)] = peer == me ? from : to;
    if (peer == me) continue;
    send(flows(call, me, peer) ? header : bare, from, peer);
    receive(header, to, peer);
  }
  const bool result = call.function != Reduce || call.root == me;
  const std::array keep{own, got};
  finish_.emplace_back([=, out = call.out, count = call.count, type = call.type, op = header.op] {
    static_cast<void>(keep);
    if (result) combine(type, op, parts, out, count);
  });
}

bool Batch::push(int peer) {
  auto& queue = outgoing_[static_cast<std::size_t>(peer)];
  if (queue.empty()) return false;
  Parcel& parcel = queue.front();
  Ring& ring = comm_->segment.ring(comm_->rank, peer);
  std::size_t moved = 0;
  if (parcel.moved < sizeof(Header)) {
    moved = ring.push(reinterpret_cast<const std::byte*>(&parcel.header) + parcel.moved, sizeof(Header) - parcel.moved);
  } else {
    const std::size_t done = parcel.moved - sizeof(Header);
    moved = ring.push(parcel.data + done, parcel.header.bytes - done);
  }
  parcel.moved += moved;
  if (parcel.moved == sizeof(Header) + parcel.header.bytes) queue.pop_front();
  return moved != 0;
}

bool Batch::pull_header(Ring& ring, Parcel& parcel, int peer) {
  const std::size_t moved =
      ring.pull(reinterpret_cast<std::byte*>(&parcel.got) + parcel.moved, sizeof(Header) - parcel.moved);
  parcel.moved += moved;
  if (parcel.moved == sizeof(Header) && !parcel.got.agrees(parcel.header)) {
    result_ = comm_->fail(InvalidUsage, "calls do not match: rank " + std::to_string(comm_->rank) + " of " +
                                            std::to_string(comm_->size) + " has " + parcel.header.text() + ", rank " +
                                            std::to_string(peer) + " has " + parcel.got.text());
  }
  return moved != 0;
}

bool Batch::pull(int peer) {
  auto& queue = incoming_[static_cast<std::size_t>(peer)];
  if (queue.empty()) return false;
  Parcel& parcel = queue.front();
  Ring& ring = comm_->segment.ring(peer, comm_->rank);
  bool moved = false;
  if (parcel.moved < sizeof(Header)) {
    moved = pull_header(ring, parcel, peer);
  } else {
    const std::size_t done = parcel.moved - sizeof(Header);
    const std::size_t bytes = ring.pull(parcel.data + done, parcel.got.bytes - done);
    parcel.moved += bytes;
    moved = bytes != 0;
  }
  if (parcel.moved >= sizeof(Header) && parcel.moved == sizeof(Header) + parcel.got.bytes) queue.pop_front();
  return moved;
}

bool Batch::exchange() {
  bool moved = false;
  for (int peer = 0; peer < comm_->size && result_ == Success; ++peer) {
    moved = push(peer) || moved;
    moved = pull(peer) || moved;
  }
  return moved;
}

bool Batch::step() {
  if (exchange() || result_ != Success) return true;
  // A failure is that of a later call if what this one needs has come before it.
  const int failure = comm_->aborted ? static_cast<int>(RemoteError) : comm_->segment.failure();
  if (failure == Success) return false;
  if (exchange()) return true;
  if (!done() && result_ == Success) result_ = failure;
  return false;
}

bool Batch::done() const {
  const auto empty = [](const std::deque<Parcel>& queue) { return queue.empty(); };
  return std::all_of(outgoing_.begin(), outgoing_.end(), empty) &&
         std::all_of(incoming_.begin(), incoming_.end(), empty);
}

void Batch::finish() {
  for (const auto& action : finish_) action();
}

int Batch::result() const { return result_; }

std::string Batch::waiting() const {
  for (std::size_t peer = 0; peer < incoming_.size(); ++peer) {
    if (!incoming_[peer].empty()) {
      return "rank " + std::to_string(comm_->rank) + " waits for rank " + std::to_string(peer) + " in " +
             incoming_[peer].front().header.text();
    }
  }
  return "rank " + std::to_string(comm_->rank) + " waits for a rank to receive its data";
}

int run(std::vector<Batch>& batches, std::chrono::milliseconds limit) {
  auto deadline = std::chrono::steady_clock::now() + limit;
  for (bool done = false; !done;) {
    bool moved = false;
    done = true;
    for (auto& batch : batches) {
      if (batch.done()) continue;
      moved = batch.step() || moved;
      if (batch.result() != Success) return batch.result();
      done = batch.done() && done;
    }
    if (moved) {
      deadline = std::chrono::steady_clock::now() + limit;
    } else if (!done) {
      if (std::chrono::steady_clock::now() > deadline) {
        for (auto& batch : batches) {
          if (!batch.done()) return batch.comm().fail(RemoteError, "too late: " + batch.waiting());
        }
      }
      sched_yield();
    }
  }
  for (auto& batch : batches) batch.finish();
  return Success;
}

}  // namespace standin
