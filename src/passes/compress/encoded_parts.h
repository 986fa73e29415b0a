// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>

#include "base/scratch.h"
#include "codecs/codec.h"

namespace mcr {

/// Encoded parts of a tensor in one buffer: what a call sends to each rank, or has received from it.
class EncodedParts {
 public:
  using Counts = std::pmr::vector<int64_t>;

  /// Reserves room for parts of these counts; if `place` is not 0, `place` bytes for each, which must be enough for
  /// every count. The lists use the allocator of `counts`.
  EncodedParts(const Codec& codec, DType dtype, Counts counts, int64_t place = 0);

  /// Encodes part `i` from elements of `dtype`. A residual is added before encoding, and is set to what is lost;
  /// it stays if the part cannot be decoded.
  void encode(std::size_t i, const void* data, DType dtype, double* residual = nullptr);
  /// Decodes part `i` to elements of `dtype`: the tensor's type, or the codec's.
  void decode(std::size_t i, void* data, DType dtype) const;
  /// Makes part `i` fail to decode, on every rank, with the text of this rank's failure.
  void fail(std::size_t i, const std::string& text, int rank);
  /// Sets the sizes received from the senders, and repacks the parts contiguously.
  void expect(std::span<const int64_t> sizes);

  std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return counts_.size(); }
  int64_t count(std::size_t i) const { return counts_[i]; }
  /// Size of the whole buffer, including unused room.
  int64_t bytes() const { return bytes_; }
  const Counts& sizes() const { return sizes_; }    // bytes of each part
  const Counts& places() const { return places_; }  // offset of each part

 private:
  std::byte* data_of(std::size_t i) const { return memory_.get() + places_[i]; }
  void lay_out();

  const Codec& codec_;
  const DType coded_;
  Counts counts_, sizes_, places_;
  int64_t bytes_ = 0;
  Scratch memory_;
};

}  // namespace mcr
