// SPDX-License-Identifier: Apache-2.0
// int8: blocks of whole numbers from -127 to 127, with one scale per block. Encoded: the scales of all blocks in the
// tensor's type, then one byte per element.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/vectorized.h"
#include "codecs/codec.h"

namespace mcr {

namespace {

constexpr int64_t kLargestBlock = 65536;

template <class T>
struct Bits;
template <>
struct Bits<float> {
  using Word = int32_t;
  static constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest whole number in the low bits
};
template <>
struct Bits<double> {
  using Word = int64_t;
  static constexpr double kRound = 0x1.8p52;
};

// The largest magnitude; infinite or NaN if an element is. Compares bits: they order like magnitudes, with NaN above
// all.
template <class T>
T largest(const T* values, int64_t count) {
  using Word = typename Bits<T>::Word;
  Word most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Word magnitude = std::bit_cast<Word>(values[i]) & std::numeric_limits<Word>::max();
    most = magnitude > most ? magnitude : most;
  }
  return std::bit_cast<T>(most);
}

// NaN if an element is not finite. 0 if the scale would be subnormal: such numbers have few digits, and a thread may
// flush them to zero.
template <class T>
T scale_of(T most) {
  if (!std::isfinite(most)) return std::numeric_limits<T>::quiet_NaN();
  if (most < 127 * std::numeric_limits<T>::min()) return 0;
  const T scale = most / 127;
  return std::isfinite(scale * 127) ? scale : std::nextafter(scale, T{0});
}

template <class T>
int64_t bytes(int64_t block, int64_t count) {
  return (count + block - 1) / block * static_cast<int64_t>(sizeof(T)) + count;
}

template <class T>
void quantise(const T* __restrict in, int64_t length, T factor, std::byte* __restrict out) {
  using Word = typename Bits<T>::Word;
  for (int64_t i = 0; i < length; ++i) {
    const T finite = factor == 0 ? T{0} : in[i];  // 0 * infinity would not be 0
    out[i] = static_cast<std::byte>(std::bit_cast<Word>(finite * factor + Bits<T>::kRound));
  }
}

template <class T>
void encode_blocks(int64_t block, const void* values, int64_t count, std::byte* out) {
  const T* in = static_cast<const T*>(values);
  std::byte* whole = out + bytes<T>(block, count) - count;
  for (int64_t start = 0; start < count; start += block, out += sizeof(T)) {
    const int64_t length = std::min(block, count - start);
    const T most = largest(in + start, length);
    const T scale = scale_of(most);
    std::memcpy(out, &scale, sizeof(T));
    quantise(in + start, length, scale > 0 ? 127 / most : T{0}, whole + start);
  }
}

template <class T>
void decode_blocks(int64_t block, const std::byte* in, void* values, int64_t count) {
  T* out = static_cast<T*>(values);
  const std::byte* whole = in + bytes<T>(block, count) - count;
  for (int64_t start = 0; start < count; start += block, in += sizeof(T)) {
    T scale;
    std::memcpy(&scale, in, sizeof(T));
    const auto* __restrict from = reinterpret_cast<const int8_t*>(whole + start);
    T* __restrict to = out + start;
    const int64_t length = std::min(block, count - start);
    for (int64_t i = 0; i < length; ++i) to[i] = scale * static_cast<T>(from[i]);
  }
}

class Int8 final : public Codec {
 public:
  explicit Int8(std::string name, int64_t block) : Codec(std::move(name)), block_(block) {}
  bool accepts(DType dtype) const override { return row(dtype).kind == DTypeKind::Floating && size_of(dtype) > 1; }
  bool fixed() const override { return true; }
  int64_t capacity(int64_t count, DType dtype) const override {
    return dtype == DType::Float ? bytes<float>(block_, count) : bytes<double>(block_, count);
  }
  int64_t encode(const void* in, int64_t count, DType dtype, std::byte* out) const override {
    if (dtype == DType::Float) {
      vectorized<encode_blocks<float>>(block_, in, count, out);
    } else {
      vectorized<encode_blocks<double>>(block_, in, count, out);
    }
    return capacity(count, dtype);
  }
  void decode(const std::byte* in, int64_t, void* out, int64_t count, DType dtype) const override {
    if (dtype == DType::Float) {
      vectorized<decode_blocks<float>>(block_, in, out, count);
    } else {
      vectorized<decode_blocks<double>>(block_, in, out, count);
    }
  }

 private:
  const int64_t block_;
};

std::unique_ptr<Codec> make(const Options& options) {
  const int64_t block = whole_number(options, "block", 64, 8, kLargestBlock);
  return std::make_unique<Int8>("int8:block=" + std::to_string(block), block);
}

}  // namespace

CodecFamily int8_family() { return {"int8", {"block"}, make}; }

}  // namespace mcr
