// SPDX-License-Identifier: Apache-2.0
#include "device/event_pool.h"

#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "base/immortal.h"

namespace mcr {

namespace {

class EventPool {
 public:
  PooledEvent take(const ReturnEvent& kind) {
    {
      const std::lock_guard lock(mutex_);
      auto& idle = idle_of(kind);
      if (!idle.empty()) {
        PooledEvent event(idle.back().release(), kind);
        idle.pop_back();
        return event;
      }
    }
    return {DeviceRuntime::of(kind.device.type).make_event(kind.timing).release(), kind};
  }

  void give_back(Event* event, const ReturnEvent& kind) noexcept {
    std::unique_ptr<Event> owned(event);
    const std::lock_guard lock(mutex_);
    try {
      idle_of(kind).push_back(std::move(owned));
    } catch (const std::bad_alloc&) {
      // The event is destroyed instead.
    }
  }

 private:
  // An event belongs to the device that it was first recorded on.
  std::vector<std::unique_ptr<Event>>& idle_of(const ReturnEvent& kind) { return idle_[{kind.device, kind.timing}]; }

  std::mutex mutex_;
  std::map<std::pair<Device, bool>, std::vector<std::unique_ptr<Event>>> idle_;  // guarded by mutex_
};

// Never destroyed: during process exit the devices' libraries may end first.
EventPool& pool() {
  static auto& events = immortal<EventPool>();
  return events;
}

}  // namespace

void ReturnEvent::operator()(Event* event) const noexcept { pool().give_back(event, *this); }

PooledEvent take_event(Device device, bool timing) { return pool().take({device, timing}); }

}  // namespace mcr
