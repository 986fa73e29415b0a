// SPDX-License-Identifier: Apache-2.0
#include "emulate.h"

#include <algorithm>
#include <cstring>

#include "reduce.h"

namespace mcr {

namespace {

// The largest message that every library sends in one piece.
constexpr int64_t kMessageBytes = int64_t{1} << 30;

// Sends and receives of one emulated call, as bytes.
class Exchange {
 public:
  Exchange(const Call& call, Plan& plan, Communicator& communicator, int rank, int size, Lane& lane)
      : call_(call), plan_(plan), communicator_(communicator), rank_(rank), size_(size), lane_(lane) {}

  void start() {
    switch (call_.op) {
      case Op::broadcast:
        return broadcast();
      case Op::all_reduce:
        return all_reduce();
      case Op::reduce:
        return reduce();
      case Op::all_gather:
        return gather_to_all();
      case Op::reduce_scatter:
        return reduce_scatter();
      case Op::all_to_all:
        return all_to_all();
      case Op::gather:
        return gather();
      case Op::scatter:
        return scatter();
      case Op::barrier:
        return barrier();
      default:
        throw Error(ErrorCode::Unsupported, std::string(row(call_.op).name) + ": no fallback");
    }
  }

 private:
  int64_t bytes(int64_t count) const { return count * size_of(call_.dtype); }
  std::byte* at(const Buffer& buffer, int64_t offset) const {
    return static_cast<std::byte*>(buffer.data) + bytes(offset);
  }

  void message(Op op, int peer, void* data, int64_t length) {
    for (int64_t offset = 0; offset < length; offset += kMessageBytes) {
      Call piece;
      piece.op = op;
      piece.internal = true;
      piece.root = peer;
      piece.out = {static_cast<std::byte*>(data) + offset, std::min(kMessageBytes, length - offset)};
      piece.timeout = call_.timeout;
      communicator_.issue(piece, lane_);
    }
  }
  void send(int peer, void* data, int64_t length) { message(Op::send, peer, data, length); }
  void receive(int peer, void* data, int64_t length) { message(Op::recv, peer, data, length); }

  // One block each way with every rank; blocks to and from this rank are copied.
  template <class To, class From>
  void with_all(To to, From from) {
    for (int step = 0; step < size_; ++step) {
      const int source = (rank_ - step + size_) % size_;
      const int target = (rank_ + step) % size_;
      const Buffer outgoing = to(target);
      const Buffer incoming = from(source);
      if (step == 0) {
        if (incoming.count != 0)
          std::memcpy(incoming.data, outgoing.data, static_cast<std::size_t>(bytes(incoming.count)));
        continue;
      }
      receive(source, incoming.data, bytes(incoming.count));
      send(target, outgoing.data, bytes(outgoing.count));
    }
  }

  // Block `i` of the side that has one per rank; `other` is the side that holds a single one.
  Buffer block(const Buffer& whole, std::span<const int64_t> counts, std::span<const int64_t> displs, int i) const {
    const auto index = static_cast<std::size_t>(i);
    if (call_.vectored) return {at(whole, displs[index]), counts[index]};
    const int64_t count = whole.count / size_;
    return {at(whole, i * count), count};
  }
  Buffer in_block(int i) const { return block(call_.in, call_.in_counts, call_.in_displs, i); }
  Buffer out_block(int i) const { return block(call_.out, call_.out_counts, call_.out_displs, i); }

  // Memory for one contribution of every rank; on completion their combination, in rank order, goes to `result`.
  std::byte* contributions(Buffer result) {
    const int64_t length = bytes(result.count);
    auto* all = static_cast<std::byte*>(plan_.allocate({}, length * size_));
    plan_.finish.emplace_back([all, length, result, size = size_, dtype = call_.dtype, red = call_.red] {
      for (int i = 1; i < size; ++i) combine(all, all + i * length, result.count, dtype, red);
      if (length != 0) std::memcpy(result.data, all, static_cast<std::size_t>(length));
    });
    return all;
  }

  void broadcast() {
    if (call_.root != rank_) return receive(call_.root, call_.out.data, bytes(call_.out.count));
    for (int i = 0; i < size_; ++i) {
      if (i != rank_) send(i, call_.out.data, bytes(call_.out.count));
    }
  }

  void all_reduce() {
    auto* all = contributions(call_.out);
    with_all([&](int) { return call_.out; },
             [&](int i) { return Buffer{all + i * bytes(call_.out.count), call_.out.count}; });
  }

  void reduce() {
    const int64_t length = bytes(call_.out.count);
    if (call_.root != rank_) return send(call_.root, call_.out.data, length);
    auto* all = contributions(call_.out);
    for (int i = 0; i < size_; ++i) {
      if (i != rank_) receive(i, all + i * length, length);
    }
    if (length != 0) std::memcpy(all + rank_ * length, call_.out.data, static_cast<std::size_t>(length));
  }

  void gather_to_all() {
    with_all([&](int) { return call_.in; }, [&](int i) { return out_block(i); });
  }

  void reduce_scatter() {
    auto* all = contributions(call_.out);
    with_all([&](int i) { return in_block(i); },
             [&](int i) { return Buffer{all + i * bytes(call_.out.count), call_.out.count}; });
  }

  void all_to_all() {
    with_all([&](int i) { return in_block(i); }, [&](int i) { return out_block(i); });
  }

  void gather() {
    if (call_.root != rank_) return send(call_.root, call_.in.data, bytes(call_.in.count));
    for (int i = 0; i < size_; ++i) {
      const Buffer part = out_block(i);
      if (i != rank_) {
        receive(i, part.data, bytes(part.count));
      } else if (part.count != 0) {
        std::memcpy(part.data, call_.in.data, static_cast<std::size_t>(bytes(part.count)));
      }
    }
  }

  void scatter() {
    if (call_.root != rank_) return receive(call_.root, call_.out.data, bytes(call_.out.count));
    for (int i = 0; i < size_; ++i) {
      const Buffer part = in_block(i);
      if (i != rank_) {
        send(i, part.data, bytes(part.count));
      } else if (part.count != 0) {
        std::memcpy(call_.out.data, part.data, static_cast<std::size_t>(bytes(part.count)));
      }
    }
  }

  void barrier() {
    const int64_t mark = bytes(1);
    auto* marks = static_cast<std::byte*>(plan_.allocate({}, mark * (1 + size_)));
    std::fill_n(marks, mark * (1 + size_), std::byte{0});
    with_all([&](int) { return Buffer{marks + mark * size_, 1}; }, [&](int i) { return Buffer{marks + mark * i, 1}; });
  }

  const Call& call_;
  Plan& plan_;
  Communicator& communicator_;
  const int rank_;
  const int size_;
  Lane& lane_;
};

}  // namespace

void emulate(const Call& call, Plan& plan, Communicator& communicator, int rank, int size, Lane& lane) {
  Exchange(call, plan, communicator, rank, size, lane).start();
}

}  // namespace mcr
