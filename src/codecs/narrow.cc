// SPDX-License-Identifier: Apache-2.0
// bf16 and fp16: rounds each element to a 16-bit floating-point type. Also widens all short types.
#include <cstring>

#include "base/elements.h"
#include "base/error.h"
#include "base/vectorized.h"
#include "codecs/codec.h"

namespace mcr {

namespace {

template <class S, class T>
void shorten(const void* in, int64_t count, void* out) {
  const T* __restrict from = static_cast<const T*>(in);
  auto* __restrict to = static_cast<std::byte*>(out);
  for (int64_t i = 0; i < count; ++i) {
    const S value = store<S>(static_cast<float>(from[i]));
    std::memcpy(to + static_cast<int64_t>(sizeof(S)) * i, &value, sizeof(S));  // encoded parts may be unaligned
  }
}

template <class S, class T>
void lengthen(const void* in, int64_t count, void* out) {
  const auto* __restrict from = static_cast<const std::byte*>(in);
  T* __restrict to = static_cast<T*>(out);
  for (int64_t i = 0; i < count; ++i) {
    S value;
    std::memcpy(&value, from + static_cast<int64_t>(sizeof(S)) * i, sizeof(S));
    to[i] = static_cast<T>(load(value));
  }
}

template <class S>
class Narrow final : public Codec {
 public:
  using Codec::Codec;
  bool accepts(DType dtype) const override { return dtype == DType::Float || dtype == DType::Double; }
  bool fixed() const override { return true; }
  int64_t capacity(int64_t count, DType) const override { return 2 * count; }
  int64_t encode(const void* in, int64_t count, DType dtype, std::byte* out) const override {
    dtype == DType::Float ? vectorized<shorten<S, float>>(in, count, out)
                          : vectorized<shorten<S, double>>(in, count, out);
    return 2 * count;
  }
  void decode(const std::byte* in, int64_t, void* out, int64_t count, DType dtype) const override {
    dtype == DType::Float ? vectorized<lengthen<S, float>>(in, count, out)
                          : vectorized<lengthen<S, double>>(in, count, out);
  }
};

template <class S>
CodecFamily family(const char* name) {
  return {name, {}, [name](const Options&) { return std::make_unique<Narrow<S>>(name); }};
}

/// Calls `action` with a value of the storage type.
template <class Action>
void with_short_type(DType dtype, Action action) {
  switch (dtype) {
    case DType::Float8_e4m3fn:
      return action(E4M3{});
    case DType::Float8_e5m2:
      return action(E5M2{});
    case DType::Half:
      return action(Half{});
    case DType::BFloat16:
      return action(Brain{});
    default:
      throw Error(ErrorCode::InvalidType,
                  "codec: expected a floating-point type of 16 or 8 bits, got " + std::string(row(dtype).name));
  }
}

}  // namespace

CodecFamily bf16_family() { return family<Brain>("bf16"); }
CodecFamily fp16_family() { return family<Half>("fp16"); }

void widen(const void* in, int64_t count, DType dtype, float* out) {
  with_short_type(dtype, [=]<class S>(S) { vectorized<lengthen<S, float>>(in, count, out); });
}

void narrow(const float* in, int64_t count, DType dtype, void* out) {
  with_short_type(dtype, [=]<class S>(S) { vectorized<shorten<S, float>>(in, count, out); });
}

}  // namespace mcr
