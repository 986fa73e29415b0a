// SPDX-License-Identifier: Apache-2.0
#include "passes/compress/encoded_parts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace mcr {

namespace {

template <class T>
void add(T* values, const double* residual, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<T>(values[i] + residual[i]);
}

// Values that are not finite would stay in the residual forever.
template <class T>
void keep_loss(const T* wanted, const T* got, double* residual, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const double loss = static_cast<double>(wanted[i]) - static_cast<double>(got[i]);
    residual[i] = std::isfinite(loss) ? loss : 0;
  }
}

template <class Visitor>
void visit(DType coded, Visitor visitor) {
  coded == DType::Float ? visitor(float{}) : visitor(double{});
}

}  // namespace

EncodedParts::EncodedParts(const Codec& codec, DType dtype, Counts counts, int64_t place)
    : codec_(codec),
      coded_(coded_type(dtype)),
      counts_(std::move(counts)),
      sizes_(counts_.size(), counts_.get_allocator()),
      places_(counts_.get_allocator()) {
  std::ranges::transform(counts_, sizes_.begin(), [&](int64_t count) {
    if (place != 0) return place;
    return count == 0 ? 0 : codec.capacity(count, coded_);
  });
  lay_out();
}

void EncodedParts::lay_out() {
  places_.clear();
  places_.reserve(sizes_.size());
  bytes_ = 0;
  for (const auto size : sizes_) {
    places_.push_back(bytes_);
    bytes_ += size;
  }
  memory_ = Scratch(bytes_);
}

void EncodedParts::expect(std::span<const int64_t> sizes) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const int64_t most = counts_[i] == 0 ? 0 : codec_.capacity(counts_[i], coded_);
    const int64_t least = counts_[i] == 0 || codec_.fixed() ? most : 1;
    if (sizes[i] < least || sizes[i] > most) {
      const auto expected = least == most ? std::to_string(most) : "1 to " + std::to_string(most);
      throw Error(ErrorCode::InvalidArgument, "part " + std::to_string(i) + ": expected " + expected +
                                                  " encoded bytes for " + std::to_string(counts_[i]) +
                                                  " elements, got " + std::to_string(sizes[i]));
    }
  }
  sizes_.assign(sizes.begin(), sizes.end());
  lay_out();
}

void EncodedParts::encode(std::size_t i, const void* data, DType dtype, double* residual) {
  const int64_t count = counts_[i];
  if (count == 0) return;
  const int64_t bytes = count * size_of(coded_);
  Scratch copy;
  if (dtype != coded_ || residual != nullptr) {
    copy = Scratch(bytes);
    if (dtype != coded_) {
      widen(data, count, dtype, reinterpret_cast<float*>(copy.get()));
    } else {
      std::copy_n(static_cast<const std::byte*>(data), bytes, copy.get());
    }
    data = copy.get();
  }
  std::byte* place = data_of(i);
  if (residual != nullptr) {
    visit(coded_, [&]<class T>(T) { add(reinterpret_cast<T*>(copy.get()), residual, count); });
  }
  const auto size = codec_.encode(data, count, coded_, place);
  if (!codec_.fixed()) sizes_[i] = size;
  if (residual == nullptr) return;
  const Scratch got(bytes);
  try {
    codec_.decode(place, size, got.get(), count, coded_);
  } catch (const Error&) {
    return;  // a failure was encoded: it must still be sent, as it makes all ranks raise the error
  }
  visit(coded_, [&]<class T>(T) {
    keep_loss(reinterpret_cast<const T*>(data), reinterpret_cast<const T*>(got.get()), residual, count);
  });
}

void EncodedParts::decode(std::size_t i, void* data, DType dtype) const {
  const int64_t count = counts_[i];
  if (count == 0) return;
  if (dtype == coded_) return codec_.decode(data_of(i), sizes_[i], data, count, coded_);
  const Scratch wide(count * size_of(coded_));
  codec_.decode(data_of(i), sizes_[i], wide.get(), count, coded_);
  narrow(reinterpret_cast<const float*>(wide.get()), count, dtype, data);
}

void EncodedParts::fail(std::size_t i, const std::string& text, int rank) {
  if (counts_[i] == 0) return;
  const auto size = codec_.encode_failure(text, rank, counts_[i], coded_, data_of(i));
  if (!codec_.fixed()) sizes_[i] = size;
}

}  // namespace mcr
