// SPDX-License-Identifier: Apache-2.0
#include "passes/compress/transfer.h"

#include <span>

namespace mcr {

namespace {

constexpr int64_t kWord = sizeof(int64_t);

Buffer bytes_of(const EncodedParts::Counts& words) {
  return {const_cast<int64_t*>(words.data()), static_cast<int64_t>(words.size()) * kWord};
}

}  // namespace

Transfer::Transfer(Op op, const Call& like, bool vectored, std::pmr::memory_resource* block, bool sends)
    : op(op), like_(like), vectored_(vectored), sends_(sends), sent_sizes_(block), received_sizes_(block) {}

// The values that all calls share.
Call Transfer::call() const {
  Call made;
  made.op = op;
  made.device = like_.device;
  made.root = like_.root;
  made.tag = like_.tag;
  made.priority = like_.priority;
  made.key = like_.key;
  made.timeout = like_.timeout;
  return made;
}

Call Transfer::data_call() {
  Call made = call();
  made.out = {out->data(), out->bytes()};
  if (!in) {
    // For a message sent after its size: a tag that no other message between the two ranks has.
    if (peer() && !received_sizes_.empty()) made.tag = static_cast<int>(received_sizes_.back());
    if (sends_) made.out.count = out->sizes().front();
    return made;
  }
  made.in = {in->data(), in->bytes()};
  made.vectored = vectored_;
  if (!vectored_) return made;
  made.out_counts = out->sizes();
  made.out_displs = out->places();
  if (op == Op::all_gather) {
    made.in.count = in->sizes().front();
  } else {
    made.in_counts = in->sizes();
    made.in_displs = in->places();
  }
  return made;
}

Call Transfer::size_call(int64_t number) {
  Call made = call();
  if (in) {
    sent_sizes_ = in->sizes();
    received_sizes_.resize(out->size());
    made.in = bytes_of(sent_sizes_);
  } else {
    received_sizes_ = out->sizes();  // the sizes to send; on a receiver they are overwritten
    if (peer()) received_sizes_.push_back(number);
  }
  made.out = bytes_of(received_sizes_);
  return made;
}

void Transfer::take_sizes(int source) {
  if (source >= 0) like_.root = source;
  if (!sends_) out->expect(std::span(received_sizes_).first(out->size()));
}

int64_t Transfer::sent_bytes() const {
  int64_t sum = 0;
  for (const auto size : in ? in->sizes() : out->sizes()) sum += size;
  return sum;
}

}  // namespace mcr
