// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/call.h"
#include "passes/compress/parcels.h"

namespace mcr {

/// One exchange of encoded parts between the ranks: a call that moves bytes, after one that moves their sizes where
/// these depend on the values. The calls use its memory.
struct Transfer {
  /// `like` gives what the calls have in common with the caller's: device, root, tag, timeout. `sends`: this rank has
  /// encoded `out`, as a broadcast's root or a sender.
  Transfer(Op op, const Call& like, bool vectored, bool sends = false);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Moves the encoded bytes; where the sizes depend on the values, after take_sizes().
  Call data_call();
  /// Moves the sizes; of a message, with the tag of the data that follows.
  Call size_call(int64_t tag);
  /// When the sizes are there; `source` is the rank that a receive got its own from, else -1.
  void take_sizes(int source);
  /// Bytes of a rank's own parts.
  int64_t sent_bytes() const;

  const Op op;
  // all_gather and all_to_all have both sides. In broadcast, send and recv both are `out`.
  std::optional<Parcels> in, out;

 private:
  Call call() const;
  bool peer() const { return row(op).is(kPeer); }

  Call like_;
  const bool vectored_;
  const bool sends_;
  std::vector<int64_t> told_, heard_;
};

}  // namespace mcr
