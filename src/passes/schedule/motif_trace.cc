// SPDX-License-Identifier: Apache-2.0
#include "passes/schedule/motif_trace.h"

#include <utility>

#include "observe/recorder.h"

namespace mcr {

void MotifTrace::begin() {
  const std::lock_guard lock(mutex_);
  motifs_.clear();
  ++turn_;
  on_.store(true, std::memory_order_relaxed);
}

std::vector<TracedMotif> MotifTrace::end() {
  const std::lock_guard lock(mutex_);
  on_.store(false, std::memory_order_relaxed);
  ++turn_;
  return std::exchange(motifs_, {});
}

void MotifTrace::follow(Work& work, const TracedMotif& motif) {
  std::size_t index = 0;
  uint64_t turn = 0;
  {
    const std::lock_guard lock(mutex_);
    index = motifs_.size();
    turn = turn_;
    motifs_.push_back(motif);
  }
  work.on_done([self = shared_from_this(), index, turn] {
    const auto now = Recorder::now();
    const std::lock_guard lock(self->mutex_);
    if (turn == self->turn_) self->motifs_[index].ended = now;
  });
}

}  // namespace mcr
