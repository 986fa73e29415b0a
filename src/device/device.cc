// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/immortal.h"

namespace mcr {

namespace {

// The host's streams execute work at once.
class HostEvent final : public Event {
 public:
  void record(const Stream&) override {}
  void join(const Stream&) override {}
  bool ready() override { return true; }
  double since(Event&) override { return 0; }
};

class HostRuntime final : public DeviceRuntime {
 public:
  Stream current(Device device) override { return {device}; }
  Stream exchange(const Stream& stream) override { return stream; }
  Device exchange(Device device) override { return device; }
  Stream make_stream(Device device, bool) override { return {device, next_.fetch_add(1, std::memory_order_relaxed)}; }
  std::unique_ptr<Event> make_event(bool) override { return std::make_unique<HostEvent>(); }
  std::shared_ptr<void> allocate(Device, int64_t bytes) override {
    return std::make_shared<std::byte[]>(static_cast<std::size_t>(bytes));
  }
  std::shared_ptr<void> allocate_pinned(Device device, int64_t bytes) override { return allocate(device, bytes); }
  void copy(void* to, const void* from, int64_t bytes, CopyKind, const Stream&) override {
    if (bytes != 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  bool capturing(const Stream&) override { return false; }

 private:
  std::atomic<int64_t> next_{1};
};

// Never destroyed: threads may still use them during process exit.
auto& runtimes() {
  using Table = std::array<std::unique_ptr<DeviceRuntime>, 2>;
  static auto& table = immortal<Table>(Table{std::make_unique<HostRuntime>(), nullptr});
  return table;
}

}  // namespace

DeviceRuntime& DeviceRuntime::of(DeviceType type) {
  auto& runtime = runtimes()[static_cast<std::size_t>(type)];
  if (runtime == nullptr) {
    throw Error(ErrorCode::Unavailable,
                "device: expected cpu, the only kind of this process, got " + std::string(name(type)));
  }
  return *runtime;
}

void DeviceRuntime::enter_background_everywhere() {
  for (const auto& runtime : runtimes()) {
    if (runtime != nullptr) runtime->enter_background();
  }
}

void DeviceRuntime::add(DeviceType type, std::unique_ptr<DeviceRuntime> runtime) {
  runtimes()[static_cast<std::size_t>(type)] = std::move(runtime);
}

}  // namespace mcr
