// SPDX-License-Identifier: Apache-2.0
// A group of one rank whose communicator works on the streams of a simulated device.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "ranks.h"
#include "simulated.h"

namespace doubling {

using namespace mcr;
using namespace std::chrono_literals;

inline constexpr auto kSlow = 100ms;  // long enough for whatever does not wait to be seen

// The calls that a test's communicator was given, and how it behaves.
struct Script {
  int lanes = 1;
  bool ordered = true;
  bool in_place = false;
  std::atomic<bool> broken{false};
  bool starts = true;              // what it has collected in a batch
  std::atomic<bool> stuck{false};  // operations end with abort() alone
  std::atomic<bool> aborted{false};
  bool refuses = false;  // every operation
  std::mutex mutex;
  std::vector<int> indices;
  std::vector<Stream> streams;
  std::string order;
};

// The only rank of its group: an all_reduce doubles the values, on the device, a little later.
class Doubling : public OpMethods<Doubling> {
 public:
  explicit Doubling(Script& script) : script_(script) {}
  bool supports(const Call& call) const override { return has(call.op); }
  std::optional<DeviceType> streams() const override { return DeviceType::CUDA; }
  int lanes() const override { return script_.lanes; }
  bool keeps_launch_order() const override { return script_.ordered; }
  bool takes_in_place(const Call&) const override { return script_.in_place; }
  void begin_batch() override { note("("); }
  void end_batch() override {
    note(")");
    if (!script_.starts) throw Error(ErrorCode::Backend, "nothing was started");
  }
  void check() override {
    if (script_.broken) throw Error(ErrorCode::Backend, "the network is gone");
  }
  void abort() noexcept override { script_.aborted = true; }

  void all_reduce(const Call& call, Lane& lane) {
    place(lane);
    simulated::enqueue(lane.stream(), [this, out = call.out] {
      std::this_thread::sleep_for(5ms);
      while (script_.stuck && !script_.aborted) std::this_thread::sleep_for(1ms);
      auto* values = static_cast<float*>(out.data);
      for (int64_t i = 0; i < out.count; ++i) values[i] *= 2;
    });
  }
  void all_gather(const Call& call, Lane& lane) {
    place(lane);
    simulated::enqueue(lane.stream(), [in = call.in, out = call.out, place = call.vectored ? call.out_displs[0] : 0] {
      std::copy_n(static_cast<const float*>(in.data), in.count, static_cast<float*>(out.data) + place);
    });
  }
  void send(const Call&, Lane& lane) {
    place(lane);
    note("s");
  }
  void barrier(const Call& call, Lane& lane) {
    CHECK(call.device.type == DeviceType::CUDA);
    place(lane);
    simulated::enqueue(lane.stream(), [this] {
      std::this_thread::sleep_for(kSlow);
      while (script_.stuck && !script_.aborted) std::this_thread::sleep_for(1ms);
      note("b");
    });
  }

 private:
  void note(const char* what) {
    const std::lock_guard lock(script_.mutex);
    script_.order += what;
  }
  void place(const Lane& lane) {
    if (script_.refuses) throw Error(ErrorCode::Backend, "refused");
    const std::lock_guard lock(script_.mutex);
    script_.indices.push_back(lane.index());
    script_.streams.push_back(lane.stream());
  }
  Script& script_;
};

class Fixture {
 public:
  explicit Fixture(int size = 1) : alone([this] { return std::make_unique<Doubling>(script); }, size) {
    simulated::start();
  }
  Script script;
  ranks::Alone alone;
  Group& group() { return alone.group(); }
};

inline Call reduction(std::vector<float>& values) {
  Call call;
  call.op = Op::all_reduce;
  call.dtype = DType::Float;
  call.device = {DeviceType::CUDA, 0};
  call.out = ranks::buffer(values);
  return call;
}

// Later work of the current stream, as a program would enqueue it.
inline void slowly(std::function<void()> work) {
  simulated::enqueue(simulated::current(), [work = std::move(work)] {
    std::this_thread::sleep_for(kSlow);
    work();
  });
}

}  // namespace doubling
