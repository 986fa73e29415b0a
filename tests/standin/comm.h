// SPDX-License-Identifier: Apache-2.0
// Communicators of the stand-in, and how the calls of a group proceed together.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "segment.h"

namespace standin {

enum Result {
  Success,
  UnhandledCudaError,
  SystemError,
  InternalError,
  InvalidArgument,
  InvalidUsage,
  RemoteError,
  InProgress
};

enum Function { Message, Broadcast, AllReduce, Reduce, AllGather, ReduceScatter, AlltoAll, Gather, Scatter };

/// A rank's description of a call for every other rank, before any data.
struct Header {
  int32_t function;
  int32_t type;
  int32_t op;    // -1: none
  int32_t root;  // -1: none
  uint64_t count;
  uint64_t bytes;  // of the data behind it, which is not compared
  bool agrees(const Header& other) const {
    return function == other.function && type == other.type && op == other.op && root == other.root &&
           count == other.count;
  }
  std::string text() const;
};

/// A call with its arguments. `op` may be a created one: its factor is applied to `in` before anything else.
struct Call {
  Function function;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::size_t count = 0;
  int type = 0;
  int op = -1;
  int root = -1;
};

class Comm {
 public:
  Comm(const Place& place, int rank, int size) : segment(place, rank, size), rank(rank), size(size) {}

  Segment segment;
  const int rank, size;
  std::atomic<bool> aborted = false;
  std::atomic<int> injected = Success;  // the result of ncclCommGetAsyncError
  /// Factors of created operators, each one element; empty once destroyed.
  std::deque<std::vector<std::byte>> factors;
  /// The reductions whose factor is read when the operation runs.
  std::deque<const void*> pointers;

  /// Ends all calls on all ranks; the first error counts. Returns it.
  int fail(int result, const std::string& text);
};

/// The calls of one group on one communicator.
class Batch {
 public:
  explicit Batch(std::shared_ptr<Comm> comm);
  void add(const Call& call);
  void send(const Header& header, const std::byte* data, int peer);
  void receive(const Header& header, std::byte* data, int peer);

  /// Moves what can be moved; returns whether something was.
  bool step();
  bool done() const;
  void finish();
  Comm& comm() const { return *comm_; }
  int result() const;
  std::string waiting() const;

 private:
  struct Parcel {
    Header header;  // of a receive: what is expected
    std::byte* data;
    std::size_t moved = 0;
    Header got{};
  };

  bool exchange();
  bool push(int peer);
  bool pull(int peer);
  bool pull_header(Ring& ring, Parcel& parcel, int peer);
  void move(const Call& call, const Header& header);
  void reduce(const Call& call, const Header& header);

  std::shared_ptr<Comm> comm_;
  std::vector<std::deque<Parcel>> outgoing_, incoming_;  // by peer
  std::vector<std::function<void()>> finish_;
  int result_ = Success;
};

/// Runs the batches to their end together.
int run(std::vector<Batch>& batches, std::chrono::milliseconds limit);

}  // namespace standin
