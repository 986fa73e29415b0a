// SPDX-License-Identifier: Apache-2.0
#include "observe/stop.h"

#include <mutex>

#include "base/immortal.h"

namespace mcr {

namespace {

struct Reason {
  std::mutex mutex;
  ErrorCode code = ErrorCode::Backend;  // guarded by mutex
  std::string text;                     // guarded by mutex
  bool thrown = false;                  // guarded by mutex
};

// Never destroyed: threads may still communicate during process exit.
Reason& reason() {
  static auto& kept = immortal<Reason>();
  return kept;
}

}  // namespace

std::atomic<bool> Stop::requested_{false};
std::atomic<bool> Stop::forked_{false};

void Stop::request(ErrorCode code, const std::string& text) {
  const std::lock_guard lock(reason().mutex);
  if (requested()) return;
  reason().code = code;
  reason().text = text;
  reason().thrown = false;
  requested_.store(true, std::memory_order_release);
}

void Stop::note_fork(const std::string& text) {
  forked_.store(true, std::memory_order_relaxed);
  request(ErrorCode::NotInitialized, text);
}

std::string Stop::text() {
  const std::lock_guard lock(reason().mutex);
  return requested() ? reason().text : std::string();
}

std::string Stop::take() {
  const std::lock_guard lock(reason().mutex);
  reason().thrown = true;
  return reason().text;
}

std::string Stop::take_desync() {
  const std::lock_guard lock(reason().mutex);
  if (!requested() || reason().code != ErrorCode::Desync || reason().thrown) return {};
  reason().thrown = true;
  return reason().text;
}

void Stop::raise() {
  const std::lock_guard lock(reason().mutex);
  reason().thrown = true;
  throw Error(reason().code, reason().text);
}

}  // namespace mcr
