// SPDX-License-Identifier: Apache-2.0
#include "algorithms/emulate.h"

#include <algorithm>
#include <string>
#include <utility>

#include "algorithms/messages.h"
#include "base/error.h"

namespace mcr {

namespace {

class Emulation {
 public:
  Emulation(const Call& call, int rank, int size, Schedule& schedule)
      : call_(call), rank_(rank), size_(size), schedule_(schedule) {}

  void build() {
    switch (call_.op) {
      case Op::broadcast:
        return broadcast();
      case Op::all_reduce:
        return all_reduce();
      case Op::reduce:
        return reduce();
      case Op::all_gather:
        return exchange([&](int) { return call_.in; }, [&](int i) { return out_block(call_, size_, i); });
      case Op::reduce_scatter:
        return reduce_scatter();
      case Op::all_to_all:
        return exchange([&](int i) { return in_block(call_, size_, i); },
                        [&](int i) { return out_block(call_, size_, i); });
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
  Buffer part(const Buffer& whole, int64_t offset, int64_t count) const {
    return slice(whole, call_.dtype, offset, count);
  }

  void message(Op op, int peer, const Buffer& buffer) {
    each_message(op, peer, buffer, call_.dtype, call_.timeout,
                 [this](const Call& piece) { pending_.push_back(schedule_.issue(piece)); });
  }
  void send(int peer, const Buffer& buffer) { message(Op::send, peer, buffer); }
  void receive(int peer, const Buffer& buffer) { message(Op::recv, peer, buffer); }
  void copy(const Buffer& to, const Buffer& from) { pending_.push_back(schedule_.copy(to, from, call_.dtype)); }

  // Exchanges one block with every other rank, each rank in a different order; copies this rank's own block.
  template <class To, class From>
  void exchange(To to, From from) {
    copy(from(rank_), to(rank_));
    for (int step = 1; step < size_; ++step) {
      receive((rank_ - step + size_) % size_, from((rank_ - step + size_) % size_));
      send((rank_ + step) % size_, to((rank_ + step) % size_));
    }
  }

  // Memory for the contributions of all ranks, contiguous.
  Buffer contributions(int64_t count) { return schedule_.buffer(count * size_, call_.dtype); }
  // That of rank `i`.
  Buffer contribution(const Buffer& all, int i) const { return part(all, i * call_.out.count, call_.out.count); }
  // When all contributions have arrived, combines them into the first one, in rank order; copies that to the output.
  void fold(const Buffer& all) {
    Schedule::Ids after = std::move(pending_);
    const Buffer sum = contribution(all, 0);
    for (int i = 1; i < size_; ++i) {
      after = {schedule_.combine(sum, contribution(all, i), call_.dtype, call_.red, after)};
    }
    schedule_.copy(call_.out, sum, call_.dtype, after);
  }

  // Receives the block of every other rank, and copies this rank's own.
  template <class Place>
  void collect(const Buffer& own, Place place) {
    for (int i = 0; i < size_; ++i) {
      if (i == rank_) {
        copy(place(i), own);
      } else {
        receive(i, place(i));
      }
    }
  }

  void broadcast() {
    if (call_.root != rank_) return receive(call_.root, call_.out);
    for (int i = 0; i < size_; ++i) {
      if (i != rank_) send(i, call_.out);
    }
  }

  void all_reduce() {
    const Buffer all = contributions(call_.out.count);
    exchange([&](int) { return call_.out; }, [&](int i) { return contribution(all, i); });
    fold(all);
  }

  void reduce() {
    if (call_.root != rank_) return send(call_.root, call_.out);
    const Buffer all = contributions(call_.out.count);
    collect(call_.out, [&](int i) { return contribution(all, i); });
    fold(all);
  }

  void reduce_scatter() {
    const Buffer all = contributions(call_.out.count);
    exchange([&](int i) { return in_block(call_, size_, i); }, [&](int i) { return contribution(all, i); });
    fold(all);
  }

  void gather() {
    if (call_.root != rank_) return send(call_.root, call_.in);
    collect(call_.in, [&](int i) { return out_block(call_, size_, i); });
  }

  void scatter() {
    if (call_.root != rank_) return receive(call_.root, call_.out);
    for (int i = 0; i < size_; ++i) {
      if (i == rank_) {
        copy(call_.out, in_block(call_, size_, i));
      } else {
        send(i, in_block(call_, size_, i));
      }
    }
  }

  void barrier() {
    const Buffer marks = contributions(1);
    const Buffer mine = schedule_.buffer(1, call_.dtype);
    std::fill_n(static_cast<std::byte*>(mine.data), size_of(call_.dtype), std::byte{0});
    exchange([&](int) { return mine; }, [&](int i) { return part(marks, i, 1); });
  }

  const Call& call_;
  const int rank_;
  const int size_;
  Schedule& schedule_;
  Schedule::Ids pending_;  // the tasks that fetch the contributions
};

}  // namespace

void emulate(const Call& call, int rank, int size, Schedule& schedule) {
  Emulation(call, rank, size, schedule).build();
}

}  // namespace mcr
