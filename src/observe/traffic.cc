// SPDX-License-Identifier: Apache-2.0
#include "observe/traffic.h"

#include <algorithm>

namespace mcr {

void Traffic::add(const Call& call, const std::string* backend, const std::string* caller, int64_t number) {
  if (lost_) return;
  Stream stream{call.op == Op::send, call.root, call.tag, backend};
  if (!stream.sends) {
    const std::pair place(stream.tag, backend);
    if (stream.peer == kAnyRank) from_anyone_.insert(place);
    if (from_anyone_.contains(place)) stream.peer = kAnyRank;
  }
  const auto bytes = call.out.count * size_of(call.dtype);
  if (const auto newest = newest_.find(stream); newest != newest_.end()) {
    auto& run = runs_[newest->second];
    if (run.bytes == bytes && run.dtype == call.dtype && run.caller == caller && run.layout == call.layout) {
      ++run.count;
      run.last = number;
      return;
    }
  }
  if (runs_.size() + from_anyone_.size() >= kMost) {
    *this = Traffic();
    lost_ = true;
    return;
  }
  newest_[stream] = runs_.size();
  runs_.push_back({stream, bytes, caller, call.layout, 1, number, call.dtype});
}

void Traffic::withdraw(int64_t number) {
  const auto found = std::ranges::find(runs_.rbegin(), runs_.rend(), number, &Run::last);
  if (found == runs_.rend()) {
    lost_ = true;  // it has been taken, or another thread's message has followed
    return;
  }
  --found->count;
  found->last = 0;
}

Traffic::Taken Traffic::take() {
  Taken taken{std::move(runs_), lost_};
  runs_ = {};
  newest_.clear();
  std::erase_if(taken.runs, [](const Run& run) { return run.count == 0; });
  return taken;
}

}  // namespace mcr
