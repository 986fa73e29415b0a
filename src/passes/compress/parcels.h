// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/scratch.h"
#include "codecs/codec.h"

namespace mcr {

/// Encoded parts of a tensor in one buffer: what a call sends to, or has received from, each rank.
class Parcels {
 public:
  /// Room for parts of these counts; all places have room for `place` elements, if that is not 0.
  Parcels(const Codec& codec, DType dtype, std::vector<int64_t> counts, int64_t place = 0);

  /// Encodes part `i` from elements of `dtype`. With a residual, that is added before and what is lost is left in it.
  void encode(std::size_t i, const void* data, DType dtype, double* residual = nullptr);
  /// Decodes part `i` to elements of `dtype`: the tensor's type, or the one that the codec sees.
  void decode(std::size_t i, void* data, DType dtype) const;
  /// Makes part `i` one that fails to decode, on every rank, with this text.
  void fail(std::size_t i, const std::string& text);
  /// The sizes that the senders have told: the parts lie one behind the other now.
  void expect(std::span<const int64_t> sizes);

  std::byte* data() const { return memory_.get(); }
  std::size_t parts() const { return counts_.size(); }
  int64_t count(std::size_t i) const { return counts_[i]; }
  /// Bytes of all places, with what is unused.
  int64_t bytes() const { return bytes_; }
  const std::vector<int64_t>& sizes() const { return sizes_; }    // bytes of each part
  const std::vector<int64_t>& places() const { return places_; }  // where it begins

 private:
  std::byte* data_of(std::size_t i) const { return memory_.get() + places_[i]; }
  void lay_out(std::span<const int64_t> sizes);

  const Codec& codec_;
  const DType coded_;
  std::vector<int64_t> counts_, sizes_, places_;
  int64_t bytes_ = 0;
  Scratch memory_;
};

}  // namespace mcr
