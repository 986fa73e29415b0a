// SPDX-License-Identifier: Apache-2.0
// Encoded parts from other ranks: sizes that they tell, and any bytes in the place of what a codec has written.
#include <array>
#include <cstring>

#include "base/error.h"
#include "bytes.h"
#include "passes/compress/encoded_parts.h"

namespace {

using namespace mcr;

// Of a size that depends on the values, which is what makes ranks tell sizes: a byte that says how many, then the
// bytes.
class Counted final : public Codec {
 public:
  Counted() : Codec("counted") {}
  bool accepts(DType dtype) const override { return dtype == DType::Float || dtype == DType::Double; }
  bool fixed() const override { return false; }
  int64_t capacity(int64_t count, DType) const override { return 1 + count; }
  int64_t encode(const void*, int64_t count, DType, std::byte* out) const override {
    std::memset(out, 1, static_cast<std::size_t>(1 + count));
    return 1 + count;
  }
  void decode(const std::byte* in, int64_t bytes, void* out, int64_t count, DType dtype) const override {
    if (bytes < 1) throw Error(ErrorCode::Backend, "codec counted: nothing to decode");
    std::byte sum{};
    for (int64_t i = 0; i < bytes; ++i) sum ^= in[i];
    std::memset(out, static_cast<int>(sum), static_cast<std::size_t>(count * size_of(dtype)));
  }
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  static const Counted counted;
  static const std::array<const Codec*, 5> codecs = {
      Codecs::instance().coding("bf16").codec, Codecs::instance().coding("fp16").codec,
      Codecs::instance().coding("int8:block=8").codec, Codecs::instance().coding("int8:block=64").codec, &counted};
  Bytes bytes(data, size);
  const auto& codec = *codecs[static_cast<std::size_t>(bytes.number(0, codecs.size() - 1))];
  const auto dtype = static_cast<DType>(bytes.number(0, kDTypes.size() - 1));
  if (!codec.accepts(dtype)) return 0;
  EncodedParts::Counts counts;
  for (int64_t i = bytes.number(1, 4); i > 0; --i) counts.push_back(bytes.number(0, 200));
  const int64_t most = bytes.number(0, 1) == 0 ? 0 : *std::max_element(counts.begin(), counts.end());
  const bool padded = codec.fixed() && most != 0;
  EncodedParts encoded(codec, dtype, counts, padded ? codec.capacity(most, coded_type(dtype)) : 0);
  if (!codec.fixed()) {
    try {
      encoded.expect(bytes.numbers(static_cast<int64_t>(counts.size())));
    } catch (const Error&) {
      return 0;
    }
  }
  const auto told = bytes.left();
  std::fill_n(encoded.data(), encoded.bytes(), std::byte{0});
  if (!told.empty())
    std::memcpy(encoded.data(), told.data(), std::min(told.size(), static_cast<std::size_t>(encoded.bytes())));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    std::vector<std::byte> out(static_cast<std::size_t>(counts[i] * size_of(dtype)));
    try {
      encoded.decode(i, out.data(), dtype);
      if (codec.fixed()) encoded.encode(i, out.data(), dtype);  // whatever it was, it is a value now
    } catch (const Error& error) {
      PROMISE(error.code() == ErrorCode::Backend);
    }
  }
  return 0;
}
