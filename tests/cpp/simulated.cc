// SPDX-License-Identifier: Apache-2.0
#include "simulated.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace simulated {

namespace {

using namespace mcr;

std::atomic<int> recorded{0};
std::atomic<int> pieces{0};
std::atomic<int> high{0};  // streams of high priority
std::atomic<bool> in_graph{false};

// One thread that does what it is given in order.
class Queue {
 public:
  Queue() : thread_([this](const std::stop_token& stop) { run(stop); }) {}

  void push(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
    changed_.notify_all();
  }

 private:
  void run(const std::stop_token& stop) {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        if (!changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) return;
        work = std::move(waiting_.front());
        waiting_.pop_front();
      }
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> waiting_;
  std::jthread thread_;
};

class Queues {
 public:
  Queue& of(int64_t id) {
    const std::lock_guard lock(mutex_);
    auto& queue = all_[id];
    if (queue == nullptr) queue = std::make_unique<Queue>();
    return *queue;
  }
  int64_t fresh() { return next_.fetch_add(1); }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::unique_ptr<Queue>> all_;
  std::atomic<int64_t> next_{1};
};

Queues& queues() {
  static Queues all;
  return all;
}

// A flag that a stream raises, and on which streams and the host can wait.
struct Flag {
  std::mutex mutex;
  std::condition_variable changed;
  bool raised = false;
  std::chrono::steady_clock::time_point when;

  void raise() {
    const std::lock_guard lock(mutex);
    raised = true;
    when = std::chrono::steady_clock::now();
    changed.notify_all();
  }
  bool ready() {
    const std::lock_guard lock(mutex);
    return raised;
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return raised; });
  }
};

class SimulatedEvent final : public Event {
 public:
  void record(const Stream& stream) override {
    ++recorded;
    auto flag = std::make_shared<Flag>();
    queues().of(stream.id).push([flag] { flag->raise(); });
    const std::lock_guard lock(mutex_);
    flag_ = std::move(flag);
  }
  void join(const Stream& stream) override {
    if (const auto flag = this->flag()) queues().of(stream.id).push([flag] { flag->wait(); });
  }
  bool ready() override {
    const auto flag = this->flag();
    return flag == nullptr || flag->ready();
  }
  double since(Event& earlier) override {
    const auto from = static_cast<SimulatedEvent&>(earlier).flag();
    return std::chrono::duration<double, std::milli>(flag()->when - from->when).count();
  }

 private:
  std::shared_ptr<Flag> flag() {
    const std::lock_guard lock(mutex_);
    return flag_;
  }
  std::mutex mutex_;
  std::shared_ptr<Flag> flag_;
};

Stream stream_of(int64_t id) { return {{DeviceType::CUDA, 0}, id, reinterpret_cast<void*>(id)}; }  // NOLINT

Stream& current_stream() {
  thread_local Stream stream = stream_of(queues().fresh());
  return stream;
}

class SimulatedRuntime final : public DeviceRuntime {
 public:
  Stream current(Device) override { return current_stream(); }
  Stream exchange(const Stream& stream) override { return std::exchange(current_stream(), stream); }
  Device exchange(Device device) override { return device; }
  Stream make_stream(Device, bool high_priority) override {
    if (high_priority) ++high;
    return stream_of(queues().fresh());
  }
  std::unique_ptr<Event> make_event(bool) override { return std::make_unique<SimulatedEvent>(); }
  std::shared_ptr<void> allocate(Device, int64_t bytes) override {
    return std::make_shared<std::byte[]>(static_cast<std::size_t>(bytes));
  }
  std::shared_ptr<void> allocate_pinned(Device device, int64_t bytes) override {
    ++pieces;
    return allocate(device, bytes);
  }
  void copy(void* to, const void* from, int64_t bytes, CopyKind, const Stream& stream) override {
    queues().of(stream.id).push([=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); });
  }
  bool capturing(const Stream&) override { return in_graph; }
};

}  // namespace

void start() {
  static std::once_flag once;
  std::call_once(once, [] { DeviceRuntime::add(DeviceType::CUDA, std::make_unique<SimulatedRuntime>()); });
}

void enqueue(const Stream& stream, std::function<void()> work) { queues().of(stream.id).push(std::move(work)); }

Stream current() { return current_stream(); }

void finish(const Stream& stream) {
  Flag done;
  enqueue(stream, [&] { done.raise(); });
  done.wait();
}

int events() { return recorded; }

int pinned() { return pieces; }

int high_streams() { return high; }

void set_capturing(bool capturing) { in_graph = capturing; }

}  // namespace simulated
