// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "base/elements.h"
#include "base/reduce.h"
#include "base/reductions.h"
#include "base/vectorized.h"

namespace mcr {
namespace {

using namespace reductions;

// The elements that pass through a temporary at once: it stays in the first-level cache.
constexpr int64_t kBlock = 1024;

/// Types that are narrower than the type that they are computed in.
template <class S>
concept Narrow = std::same_as<decltype(load(S{})), float> && !std::same_as<S, float>;

template <class S>
concept Scalar = std::is_arithmetic_v<decltype(load(S{}))>;

// `out` may be `a` or `b`: equal indices only, so vectors are safe, which the compiler cannot know.
template <class S, class R>
void pair(void* out, const void* a, const void* b, int64_t count) {
  auto* to = static_cast<S*>(out);
  const auto* left = static_cast<const S*>(a);
  const auto* right = static_cast<const S*>(b);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) to[i] = store<S>(R::of(load(left[i]), load(right[i])));
}

template <Narrow S>
void widen(float* to, const void* from, int64_t count) {
  const auto* values = static_cast<const S*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = load(values[i]);
}

template <Narrow S, class R>
void fold(float* into, const void* from, int64_t count) {
  const auto* values = static_cast<const S*>(from);
  for (int64_t i = 0; i < count; ++i) into[i] = R::of(into[i], load(values[i]));
}

template <Narrow S>
void narrow(void* to, const float* from, int64_t count, float divisor) {
  auto* values = static_cast<S*>(to);
  if (std::has_single_bit(static_cast<uint32_t>(divisor))) {  // its reciprocal is exact
    const float factor = 1 / divisor;
    for (int64_t i = 0; i < count; ++i) values[i] = store<S>(from[i] * factor);
  } else {
    for (int64_t i = 0; i < count; ++i) values[i] = store<S>(from[i] / divisor);
  }
}

/// The loops of one element type and reduction.
struct Loops {
  void (*pair)(void*, const void*, const void*, int64_t) = nullptr;
  void (*widen)(float*, const void*, int64_t) = nullptr;  // these three only for narrow types
  void (*fold)(float*, const void*, int64_t) = nullptr;
  void (*narrow)(void*, const float*, int64_t, float) = nullptr;
};

template <class S>
Loops loops_of(RedOp red) {
  return visit_reduction<S>(red, []<class R>(R) -> Loops {
    if constexpr (Narrow<S>) {
      return {vectorized<pair<S, R>>, vectorized<widen<S>>, vectorized<fold<S, R>>, vectorized<narrow<S>>};
    } else if constexpr (Scalar<S>) {
      return {vectorized<pair<S, R>>};
    } else {
      return {vectorized_unfused<pair<S, R>>};
    }
  });
}

Loops loops(DType dtype, RedOp red) {
  return visit(dtype, [red]<class S>(S) { return loops_of<S>(red); });
}

const void* at(const void* data, int64_t offset) { return static_cast<const std::byte*>(data) + offset; }

// The last step writes to `out`, the others to a temporary: `out` may be a source that is still needed.
void wide_blocks(const Loops& run, void* out, std::span<const void* const> sources, int64_t count, int64_t element) {
  alignas(64) std::array<std::byte, kBlock * 16> sum;
  for (int64_t first = 0; first < count; first += kBlock) {
    const auto offset = first * element;
    const auto length = std::min(kBlock, count - first);
    run.pair(sum.data(), at(sources[0], offset), at(sources[1], offset), length);
    for (std::size_t i = 2; i + 1 < sources.size(); ++i) {
      run.pair(sum.data(), sum.data(), at(sources[i], offset), length);
    }
    run.pair(static_cast<std::byte*>(out) + offset, sum.data(), at(sources.back(), offset), length);
  }
}

void narrow_blocks(const Loops& run, void* out, std::span<const void* const> sources, int64_t count, int64_t element,
                   float divisor) {
  alignas(64) std::array<float, kBlock> sum;
  for (int64_t first = 0; first < count; first += kBlock) {
    const auto offset = first * element;
    const auto length = std::min(kBlock, count - first);
    run.widen(sum.data(), at(sources[0], offset), length);
    for (const auto* source : sources.subspan(1)) run.fold(sum.data(), at(source, offset), length);
    run.narrow(static_cast<std::byte*>(out) + offset, sum.data(), length, divisor);
  }
}

}  // namespace

void combine(void* into, const void* from, int64_t count, DType dtype, RedOp red) {
  const auto run = loops(dtype, red);
  if (run.pair == nullptr) undefined_reduction(red, dtype);
  run.pair(into, into, from, count);
}

void combine_all(void* out, std::span<const void* const> sources, int64_t count, DType dtype, RedOp red) {
  const auto element = size_of(dtype);
  if (sources.size() == 1) {
    if (out != sources[0] && count != 0) std::memcpy(out, sources[0], static_cast<std::size_t>(count * element));
    return;
  }
  const bool average = red == RedOp::AVG;
  const auto run = loops(dtype, average ? RedOp::SUM : red);
  if (run.pair == nullptr || !defined(dtype, red)) undefined_reduction(red, dtype);
  if (run.narrow != nullptr && (average || sources.size() > 2)) {
    return narrow_blocks(run, out, sources, count, element, average ? static_cast<float>(sources.size()) : 1.0F);
  }
  if (sources.size() == 2) {
    run.pair(out, sources[0], sources[1], count);
  } else {
    wide_blocks(run, out, sources, count, element);
  }
  if (average) divide(out, count, dtype, static_cast<int64_t>(sources.size()));
}

}  // namespace mcr
