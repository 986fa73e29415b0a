// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory_resource>
#include <optional>

#include "base/call.h"
#include "passes/compress/encoded_parts.h"

namespace mcr {

/// One exchange of encoded parts between the ranks: a call that moves bytes, after one that moves their sizes if these
/// depend on the values. The calls use its memory.
struct Transfer {
  /// `like` has the values taken from the caller's call: device, root, tag, timeout. `sends`: this rank has encoded
  /// `out`, as a broadcast's root or a sender. Its lists are allocated from `block`.
  Transfer(Op op, const Call& like, bool vectored, std::pmr::memory_resource* block, bool sends = false);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// The call that moves the encoded bytes; if the sizes depend on the values, after take_sizes().
  Call data_call();
  /// The call that moves the sizes; for a message, with the tag of the data that follows.
  Call size_call(int64_t tag);
  /// Call when the sizes have arrived; `source` is the rank that sent them to a receive, else -1.
  void take_sizes(int source);
  /// The size of this rank's own parts.
  int64_t sent_bytes() const;

  const Op op;
  // all_gather and all_to_all use both. In broadcast, send and recv both sides are `out`.
  std::optional<EncodedParts> in, out;

 private:
  Call call() const;
  bool peer() const { return row(op).is(kPeer); }

  Call like_;
  const bool vectored_;
  const bool sends_;
  EncodedParts::Counts sent_sizes_, received_sizes_;
};

}  // namespace mcr
