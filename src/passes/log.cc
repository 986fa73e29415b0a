// SPDX-License-Identifier: Apache-2.0
#include "passes/log.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "choose/select.h"

namespace mcr {

namespace {

uint32_t this_thread() {
  thread_local const auto number = static_cast<uint32_t>(::syscall(SYS_gettid));
  return number;
}

// Sets the fields that are known after the rest of the chain has handled the call.
void hand_over(Record& record, const Passage& passage) {
  if (passage.candidate != nullptr) record.backend = &passage.candidate->name;
  record.fused = passage.notes.fused ? 1 : 0;
  record.codec = passage.notes.codec;
  record.sent_bytes = passage.notes.sent_bytes;
}

void finish(int64_t number, const Passage& passage, CallState state, int source) {
  const auto end = Recorder::now();
  Recorder::instance().change(number, [&](Record& record) {
    hand_over(record, passage);
    record.start = record.asynchronous != 0 ? end : record.issue;
    record.end = end;
    record.state = state;
    if (record.root == kAnyRank) record.root = source;
  });
}

// The library has got the call, which is not complete yet.
void handed_over(int64_t number, const Passage& passage) {
  const auto start = Recorder::now();
  Recorder::instance().change(number, [&](Record& record) {
    hand_over(record, passage);
    record.start = start;
    record.state = CallState::Started;
  });
}

void follow(int64_t number, const Passage& passage, Work& work) {
  if (work.completed()) {
    return finish(number, passage, work.failed() ? CallState::Failed : CallState::Completed, work.source());
  }
  handed_over(number, passage);
  work.set_record(number);
  // For a Work that completes meanwhile on another thread. The Work runs the callback, so it is alive then.
  work.on_done([&work] {
    if (const auto number = work.take_record(); number != 0) {
      Recorder::instance().completed(number, work.failed(), work.source());
    }
  });
}

// The rest of the chain has returned.
void ended(int64_t number, const Passage& passage, const Outcome& outcome) {
  const auto& times = passage.notes.times;
  if (outcome.work != nullptr) {
    follow(number, passage, *outcome.work);
  } else if (times != nullptr) {
    handed_over(number, passage);
  } else {
    finish(number, passage, CallState::Completed, outcome.source);
  }
  if (times == nullptr) return;
  Recorder::instance().follow(number, times);
  Recorder::instance().collect();
}

}  // namespace

int64_t Log::record(Passage& passage, int64_t seq) const {
  passage.notes.timed = true;
  auto& recorder = Recorder::instance();
  auto& ring = recorder.ring();
  const Call& call = passage.call;
  Record record;
  record.issue = Recorder::now();
  record.number = recorder.next();
  record.seq = seq;
  record.group = &group_;
  if (passage.candidate != nullptr) record.backend = &passage.candidate->name;
  record.caller = Recorder::callers_wanted() ? Recorder::caller() : nullptr;
  record.in_count = sent_elements(call);
  record.out_count = received_elements(call);
  record.bytes = call.vectored ? std::max(record.in_count, record.out_count) * size_of(call.dtype)
                               : message_bytes(call, passage.group.size());
  record.root = call.root;
  record.tag = call.tag;
  record.priority = call.priority;
  record.key = call.key;
  record.thread = this_thread();
  record.op = call.op;
  record.dtype = call.dtype;
  record.red = call.red;
  record.vectored = call.vectored ? 1 : 0;
  record.asynchronous = passage.asynchronous ? 1 : 0;
  if (call.vectored) ring.keep_splits(record, call.in_counts, call.out_counts);
  ring.put(record);
  return record.number;
}

void Log::withdraw(std::atomic<int64_t>& counter, int64_t number, int64_t seq) const {
  auto last = seq;
  const bool followed = !counter.compare_exchange_strong(last, seq - 1);
  if (followed && &counter == &group_.collectives) return;  // the other ranks count on
  Recorder::instance().change(number, [](Record& record) { record.seq = 0; });
}

Outcome Log::handle(Passage& passage, const Next& next) {
  const auto op = passage.call.op;
  auto& counter = row(op).is(kPeer) ? group_.messages : group_.collectives;
  const auto seq = counter.fetch_add(1, std::memory_order_relaxed) + 1;
  const auto number = ops_.test(static_cast<std::size_t>(op)) ? record(passage, seq) : 0;
  try {
    auto outcome = next(passage);
    if (number != 0) ended(number, passage, outcome);
    return outcome;
  } catch (...) {
    if (number != 0) finish(number, passage, CallState::Failed, -1);
    if (!passage.notes.sent) withdraw(counter, number, seq);
    throw;
  }
}

}  // namespace mcr
