// SPDX-License-Identifier: Apache-2.0
#include "choose/kinds.h"

namespace mcr {

DTypeClass types_of(const Call& call) { return row(call.op).is(kReduces) ? class_of(call.dtype) : DTypeClass::Any; }

uint64_t kind_key(const Call& call, int size) {
  auto key = static_cast<uint64_t>(size);
  key = key * 256 + static_cast<uint64_t>(call.op);
  key = key * 2 + (call.vectored ? 1 : 0);
  key = key * 2 + (call.asynchronous ? 1 : 0);
  key = key * kDTypeClasses.size() + static_cast<uint64_t>(types_of(call));
  return key * 2 + static_cast<uint64_t>(call.device.type);
}

Call kind_of(const Call& call, int64_t bytes) {
  Call kind;
  kind.op = call.op;
  kind.dtype = call.dtype;
  kind.red = call.red;
  kind.vectored = call.vectored;
  kind.asynchronous = call.asynchronous;
  kind.device = call.device;
  kind.size_hint = bytes;
  return kind;
}

}  // namespace mcr
