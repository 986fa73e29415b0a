// SPDX-License-Identifier: Apache-2.0
// The calls of all ranks of a group, with memory of any values, for tests of algorithms.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/call.h"

namespace memory {

using namespace mcr;

inline constexpr std::byte kUntouched{0xA5};

// One operation on `size` ranks, with the memory of all of them.
struct Setting {
  Op op;
  DType dtype;
  RedOp red;
  int size;
  int64_t count;  // elements of a block; of vectored ones the largest
  int root;
  bool vectored;
  bool exact = false;  // floating-point numbers of which every reduction is exact, in any order

  std::string text() const {
    return std::string(row(op).name) + (vectored ? "v" : "") + " " + std::string(name(red)) + " of " +
           std::to_string(count) + " " + std::string(row(dtype).name) + ", root " + std::to_string(root) + " of " +
           std::to_string(size);
  }
};

class Ranks {
 public:
  Ranks(const Setting& setting, uint32_t seed) : setting_(setting), memory_(2 * size()), vectors_(4 * size()) {
    std::mt19937 generator(seed);
    for (int rank = 0; rank < setting.size; ++rank) make(rank, generator);
  }

  std::vector<Call> calls;

  bool operator==(const Ranks& other) const { return std::ranges::equal(memory_, other.memory_, alike); }

 private:
  using Memory = std::vector<std::byte>;

  static bool alike(const Memory& one, const Memory& other) {
    return one.size() == other.size() && (one.empty() || std::memcmp(one.data(), other.data(), one.size()) == 0);
  }

  std::size_t size() const { return static_cast<std::size_t>(setting_.size); }

  // Elements from rank `from` to rank `to`. Not all blocks are alike, and some are empty.
  int64_t block(int from, int to) const {
    if (!setting_.vectored) return setting_.count;
    const int turn =
        setting_.op == Op::all_to_all ? from + 2 * to : (row(setting_.op).extent == Extent::Gather ? from : to);
    return turn % 3 == 1 ? 0 : std::max<int64_t>(0, setting_.count - turn % 4);
  }

  Buffer allocate(std::size_t index, int64_t count, std::mt19937* values) {
    auto& memory = memory_[index];
    const auto element = static_cast<std::size_t>(size_of(setting_.dtype));
    const auto bytes = static_cast<std::size_t>(count) * element;
    // Nothing may change the guards, an element in front and a byte behind. Only elements are aligned, as in a view of
    // a tensor: complex numbers of 16 bytes to 8.
    const auto front = std::min<std::size_t>(element, 8);
    memory.assign(front + bytes + 1, kUntouched);
    const std::span<std::byte> content(memory.data() + front, bytes);
    const auto kind = row(setting_.dtype).kind;
    if (values != nullptr && setting_.exact && (kind == DTypeKind::Floating || kind == DTypeKind::Complex)) {
      fill_exactly(content, index / 2, *values);
    } else if (values != nullptr) {
      fill(content, *values);
    }
    return {content.data(), count};
  }

  // Bools are 0 and 1. Floating-point numbers are finite: of two NaNs an addition takes either one's bits.
  void fill(std::span<std::byte> memory, std::mt19937& values) const {
    for (std::size_t i = 0; i < memory.size(); i += sizeof(uint32_t)) {
      const auto value = static_cast<uint32_t>(values());
      std::memcpy(&memory[i], &value, std::min(sizeof value, memory.size() - i));
    }
    const auto kind = row(setting_.dtype).kind;
    const auto size = static_cast<std::size_t>(size_of(setting_.dtype)) / (kind == DTypeKind::Complex ? 2 : 1);
    if (kind == DTypeKind::Integer) return;
    for (std::size_t i = size - 1; i < memory.size(); i += size) {
      memory[i] &= kind == DTypeKind::Bool ? std::byte{1} : std::byte{0xBF};  // 0xBF: an exponent that is not the last
    }
  }

  // The highest bytes of 1 in a type; those of 2 are 0x40 and 0 in every one.
  static constexpr uint16_t one(DType dtype) {
    switch (dtype) {
      case DType::Float8_e4m3fn:
        return 0x3800;
      case DType::Float8_e5m2:
      case DType::Half:
        return 0x3C00;
      case DType::Double:
      case DType::ComplexDouble:
        return 0x3FF0;
      default:
        return 0x3F80;
    }
  }

  // Numbers 1 and 2 with signs, for sums 1 alone. Those of eight ranks have exact sums and products in types of 8 bits
  // too; further ranks have 0 for sums and 1 for products. No zero is negative. Complex numbers are 2 + i with a sign,
  // of which no product has a part of zero.
  void fill_exactly(std::span<std::byte> memory, std::size_t rank, std::mt19937& values) const {
    const bool complex = row(setting_.dtype).kind == DTypeKind::Complex, further = rank >= 8;
    const auto size = static_cast<std::size_t>(size_of(setting_.dtype)) / (complex ? 2 : 1);
    std::ranges::fill(memory, std::byte{0});
    bool first = true, negative = false;
    for (std::size_t end = size; end <= memory.size(); end += size, first = !first) {
      const auto value = static_cast<uint32_t>(values());
      if (!complex || first) negative = (value & 1) != 0;
      const bool sum = !complex && setting_.red == RedOp::SUM;
      if (sum && further) continue;
      const bool two = complex ? first : !sum && !further && (value & 2) != 0;
      const int bits = (two ? 0x4000 : one(setting_.dtype)) | (negative ? 0x8000 : 0);
      memory[end - 1] = static_cast<std::byte>(bits >> 8);
      if (size > 1) memory[end - 2] = static_cast<std::byte>(bits & 0xFF);
    }
  }

  // The counts and displacements of a side with a block per rank, the last block first and with gaps; its extent.
  int64_t lay_out(std::size_t index, const std::vector<int64_t>& counts, std::span<const int64_t>& counts_of_call,
                  std::span<const int64_t>& displs_of_call) {
    auto& displs = vectors_[index + 1];
    displs.assign(counts.size(), 0);
    int64_t end = 0;
    for (std::size_t i = counts.size(); i-- > 0;) {
      displs[i] = end + 1;
      end = displs[i] + counts[i];
    }
    vectors_[index] = counts;
    counts_of_call = vectors_[index];
    displs_of_call = displs;
    return end;
  }

  void make(int rank, std::mt19937& generator) {
    const auto index = static_cast<std::size_t>(rank);
    const OpRow& op = row(setting_.op);
    Call call;
    call.op = setting_.op;
    call.dtype = setting_.dtype;
    call.red = setting_.red;
    call.root = setting_.root;
    call.vectored = setting_.vectored;
    const bool root = !op.is(kRooted) || rank == setting_.root;
    const auto whole = [&](bool incoming, std::span<const int64_t>& counts, std::span<const int64_t>& displs) {
      std::vector<int64_t> blocks;
      for (int i = 0; i < setting_.size; ++i) {
        const bool gathers = op.extent == Extent::Gather;
        blocks.push_back(incoming || gathers ? block(i, rank) : block(rank, i));
      }
      if (!setting_.vectored) return setting_.count * setting_.size;
      return lay_out(4 * index + (incoming ? 2 : 0), blocks, counts, displs);
    };
    const bool in_blocks = op.extent == Extent::Scatter || op.extent == Extent::Exchange;
    const bool out_blocks = op.extent == Extent::Gather || op.extent == Extent::Exchange;
    if (op.extent == Extent::Same) {
      call.out = allocate(2 * index, setting_.count, &generator);
    } else if (op.extent != Extent::None) {
      if (!in_blocks || root) {
        const int64_t count = in_blocks ? whole(false, call.in_counts, call.in_displs) : block(rank, 0);
        call.in = allocate(2 * index, count, &generator);
      }
      if (!out_blocks || root) {
        const int64_t count = out_blocks ? whole(true, call.out_counts, call.out_displs) : block(setting_.root, rank);
        call.out = allocate(2 * index + 1, count, nullptr);
      }
    }
    calls.push_back(call);
  }

  const Setting setting_;
  std::vector<Memory> memory_;
  std::vector<std::vector<int64_t>> vectors_;
};

}  // namespace memory
