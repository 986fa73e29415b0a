// SPDX-License-Identifier: Apache-2.0
#include "ranks.h"

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <tuple>

#include "check.h"

namespace ranks {

namespace {

using namespace mcr;

std::atomic<bool> device_memory{false};

struct Message {
  void* data;
  int64_t bytes;
  std::atomic<bool> done{false};
  std::string problem{};
};

// Messages from one rank to another. Both sides wait for each other, so that a buffer that goes too early is noticed.
struct Channel {
  std::deque<std::shared_ptr<Message>> sends, receives;

  void match() {
    while (!sends.empty() && !receives.empty()) {
      auto& send = *sends.front();
      auto& receive = *receives.front();
      if (send.bytes != receive.bytes) {
        receive.problem = "expected " + std::to_string(receive.bytes) + " bytes, got " + std::to_string(send.bytes);
      } else if (send.bytes != 0) {
        std::memcpy(receive.data, send.data, static_cast<std::size_t>(send.bytes));
      }
      send.done = true;
      receive.done = true;
      sends.pop_front();
      receives.pop_front();
    }
  }
};

struct Network {
  std::mutex mutex;
  std::map<std::tuple<int, int, int, bool>, Channel> channels;  // from, to, tag, internal
};

class MessageRequest : public Request {
 public:
  MessageRequest(std::shared_ptr<Message> message, int source) : message_(std::move(message)), source_(source) {}
  bool poll() override {
    if (!message_->done) return false;
    if (!message_->problem.empty()) throw Error(ErrorCode::Backend, message_->problem);
    return true;
  }
  int source() const override { return source_; }

 private:
  std::shared_ptr<Message> message_;
  int source_;  // of a receive
};

class MemoryCommunicator : public OpMethods<MemoryCommunicator> {
 public:
  MemoryCommunicator(Network& network, int rank) : network_(network), rank_(rank) {}
  bool supports(const Call& call) const override {
    return has(call.op) && (call.device.type == DeviceType::CPU || device_memory);
  }

  void send(const Call& call, Lane& lane) { post(call, rank_, call.root, &Channel::sends, lane); }
  void recv(const Call& call, Lane& lane) { post(call, call.root, rank_, &Channel::receives, lane); }

 private:
  void post(const Call& call, int from, int to, std::deque<std::shared_ptr<Message>> Channel::* queue, Lane& lane) {
    auto message = std::make_shared<Message>(call.out.data, call.out.count * size_of(call.dtype));
    lane.track(std::make_unique<MessageRequest>(message, call.op == Op::recv ? from : -1));
    std::lock_guard lock(network_.mutex);
    auto& channel = network_.channels[{from, to, call.tag, call.internal}];
    (channel.*queue).push_back(std::move(message));
    channel.match();
  }

  Network& network_;
  const int rank_;
};

}  // namespace

GroupSpec spec(int size, int rank) {
  GroupSpec made;
  made.name = "default";
  made.ranks.resize(static_cast<std::size_t>(size));
  std::iota(made.ranks.begin(), made.ranks.end(), 0);
  made.rank = rank;
  made.timeout = std::chrono::seconds(60);
  return made;
}

Alone::Alone(Make communicator, int size, int rank, const std::string& backend, bool moves_data)
    : group_(spec(size, rank)) {
  entry_.name = backend;
  entry_.backend = std::make_unique<MadeBackend>(std::move(communicator), moves_data);
  group_.connect(entry_, 0);
}

void take_device_memory(bool take) { device_memory = take; }

void together(int size, const std::function<void(Group&)>& body) {
  together(size, [&](Group& group, const std::shared_ptr<Group>&) { body(group); });
}

void together(int size, const std::function<void(Group&, const std::shared_ptr<Group>&)>& body) {
  Network network, second;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Alone alone([&] { return std::make_unique<MemoryCommunicator>(network, rank); }, size, rank, "memory");
        const auto shadow = std::make_shared<Alone>([&] { return std::make_unique<MemoryCommunicator>(second, rank); },
                                                    size, rank, "memory");
        body(alone.group(), {shadow, &shadow->group()});
        // As at the end of a program: operations without a wait are still under way, with this rank's memory.
        for (auto* one : {&alone, shadow.get()}) CHECK(one->backend().progress.drain(std::chrono::seconds(60)));
      } catch (const std::exception& error) {
        check::failed("rank", rank, error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

int run(Group& group, Call call, Candidate* candidate) {
  Extras extras;
  return mcr::run(group, candidate, call, extras, nullptr);
}

std::shared_ptr<Work> start(Group& group, Call call, Candidate* candidate) {
  Extras extras;
  return mcr::start(group, candidate, call, extras);
}

Failure failure(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {};
}

}  // namespace ranks
