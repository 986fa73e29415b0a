// SPDX-License-Identifier: Apache-2.0
#include "event_pool.h"

#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace mcr {

namespace {

class EventPool {
 public:
  PooledEvent take(Device device) {
    {
      const std::lock_guard lock(mutex_);
      auto& idle = idle_of(device);
      if (!idle.empty()) {
        PooledEvent event(idle.back().release(), {device});
        idle.pop_back();
        return event;
      }
    }
    return {DeviceRuntime::of(device.type).make_event(false).release(), {device}};
  }

  void give_back(Event* event, Device device) noexcept {
    std::unique_ptr<Event> owned(event);
    const std::lock_guard lock(mutex_);
    try {
      idle_of(device).push_back(std::move(owned));
    } catch (const std::bad_alloc&) {
      // Then it is destroyed instead.
    }
  }

 private:
  // An event belongs to the device that it was first recorded on.
  std::vector<std::unique_ptr<Event>>& idle_of(Device device) {
    return idle_[{static_cast<int>(device.type), device.index}];
  }

  std::mutex mutex_;
  std::map<std::pair<int, int>, std::vector<std::unique_ptr<Event>>> idle_;  // guarded by mutex_
};

// Never destroyed: at the end of the process the devices' libraries may be gone before it.
EventPool& pool() {
  static auto& events = *std::make_unique<EventPool>().release();
  return events;
}

}  // namespace

void ReturnEvent::operator()(Event* event) const noexcept { pool().give_back(event, device); }

PooledEvent take_event(Device device) { return pool().take(device); }

}  // namespace mcr
