// SPDX-License-Identifier: Apache-2.0
// Extents, counts, displacements and roots of any size: what is accepted touches the call's own memory alone, and
// leaves what lies between the blocks as it was.
#include <numeric>

#include "base/error.h"
#include "bytes.h"
#include "engine/flatten.h"
#include "engine/validate.h"

namespace {

using namespace mcr;

// A tensor of that extent; a few elements are memory, the larger ones are numbers only, which no accepted call may
// have.
struct Memory {
  explicit Memory(int64_t extent)
      : count(extent), bytes(static_cast<std::size_t>(std::clamp<int64_t>(extent, 0, 4096) * 4)) {
    std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  }
  Buffer buffer() { return {bytes.data(), count}; }
  int64_t count;
  std::vector<uint8_t> bytes;
};

bool written(const Call& call, std::size_t element) {
  if (!call.vectored || call.out_counts.empty()) return true;
  for (std::size_t i = 0; i < call.out_counts.size(); ++i) {
    const auto begin = static_cast<std::size_t>(call.out_displs[i]);
    if (element >= begin && element < begin + static_cast<std::size_t>(call.out_counts[i])) return true;
  }
  return false;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  Call call;
  Extras extras;
  call.op = static_cast<Op>(bytes.number(0, kOps.size() - 1));
  call.dtype = DType::Int;
  call.red = static_cast<RedOp>(bytes.number(0, kReductions.size() - 1));
  const auto ranks = static_cast<int>(bytes.number(1, 4));
  const auto rank = static_cast<int>(bytes.number(0, ranks - 1));
  call.root = bytes.take<uint8_t>() < 230 ? static_cast<int>(bytes.number(0, ranks)) : bytes.take<int32_t>();
  call.tag = static_cast<int>(bytes.any_number());
  call.vectored = row(call.op).is(kVectored) && bytes.number(0, 3) != 0;
  Memory in(bytes.number(0, 60)), out(bytes.number(0, 60));
  call.in = in.buffer();
  call.out = out.buffer();
  const auto list = [&](int64_t usual) {
    return extras.keep_counts(bytes.numbers(bytes.take<uint8_t>() < 240 ? usual : bytes.number(0, 5)));
  };
  if (call.vectored) {
    call.in_counts = list(ranks);
    call.out_counts = list(ranks);
    if (bytes.number(0, 1) == 0) call.in_displs = list(ranks);
    if (bytes.number(0, 1) == 0) call.out_displs = list(ranks);
  }
  try {
    validate(call, extras, rank, ranks);
  } catch (const Error& error) {
    PROMISE(error.code() == ErrorCode::InvalidArgument || error.code() == ErrorCode::InvalidType);
    return 0;
  }
  const Call accepted = call;
  separate(call, extras);
  pack(call, extras);
  // In the place of a backend: all of the output is written, all of the input is read.
  unsigned sum = 0;
  const auto* read = static_cast<const uint8_t*>(call.in.data);
  if (row(call.op).extent != Extent::Same && row(call.op).extent != Extent::None) {
    for (int64_t i = 0; i < call.in.count * 4; ++i) sum += read[i];
    if (call.out.count != 0)
      std::fill_n(static_cast<uint8_t*>(call.out.data), call.out.count * 4, static_cast<uint8_t>(sum));
  }
  unflatten(call, extras);
  extras.conclude();
  if (!accepted.vectored || accepted.out_displs.empty() || call.out.data == out.bytes.data()) return 0;
  for (std::size_t i = 0; i < out.bytes.size(); ++i) {
    if (!written(accepted, i / 4)) PROMISE(out.bytes[i] == static_cast<uint8_t>(i));
  }
  return 0;
}
