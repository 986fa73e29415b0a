// SPDX-License-Identifier: Apache-2.0
// Each loop is compiled for several instruction sets; the processor decides at run time. The bodies are inlined into
// functions with the attribute `target`, so no function of another set can be called by mistake.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "base/elements.h"
#include "base/reduce.h"
#include "base/reductions.h"

namespace mcr {
namespace {

using namespace reductions;

// The elements that pass through a temporary at once: it stays in the first-level cache.
constexpr int64_t kBlock = 1024;

/// Types that are narrower than the type that they are computed in.
template <class S>
concept Narrow = std::same_as<decltype(load(S{})), float> && !std::same_as<S, float>;

// `out` may be `a` or `b`: equal indices only, so vectors are safe, which the compiler cannot know.
template <class S, class R>
[[gnu::always_inline]] inline void pair_body(void* out, const void* a, const void* b, int64_t count) {
  auto* to = static_cast<S*>(out);
  const auto* left = static_cast<const S*>(a);
  const auto* right = static_cast<const S*>(b);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) to[i] = store<S>(R::of(load(left[i]), load(right[i])));
}

template <Narrow S>
[[gnu::always_inline]] inline void widen_body(float* to, const void* from, int64_t count) {
  const auto* values = static_cast<const S*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = load(values[i]);
}

template <Narrow S, class R>
[[gnu::always_inline]] inline void fold_body(float* into, const void* from, int64_t count) {
  const auto* values = static_cast<const S*>(from);
  for (int64_t i = 0; i < count; ++i) into[i] = R::of(into[i], load(values[i]));
}

template <Narrow S>
[[gnu::always_inline]] inline void narrow_body(void* to, const float* from, int64_t count, float divisor) {
  auto* values = static_cast<S*>(to);
  for (int64_t i = 0; i < count; ++i) values[i] = store<S>(from[i] / divisor);
}

/// The loops of one element type and reduction.
struct Loops {
  void (*pair)(void*, const void*, const void*, int64_t) = nullptr;
  void (*widen)(float*, const void*, int64_t) = nullptr;  // these three only for narrow types
  void (*fold)(float*, const void*, int64_t) = nullptr;
  void (*narrow)(void*, const float*, int64_t, float) = nullptr;
};

// clang-format off
#define MCR_INSTRUCTIONS(Name, ...)                                                                       \
  struct Name {                                                                                           \
    template <class S, class R>                                                                           \
    __VA_ARGS__ static void pair(void* out, const void* a, const void* b, int64_t n) {                    \
      pair_body<S, R>(out, a, b, n);                                                                      \
    }                                                                                                     \
    template <class S>                                                                                    \
    __VA_ARGS__ static void widen(float* to, const void* from, int64_t n) { widen_body<S>(to, from, n); } \
    template <class S, class R>                                                                           \
    __VA_ARGS__ static void fold(float* to, const void* from, int64_t n) { fold_body<S, R>(to, from, n); } \
    template <class S>                                                                                    \
    __VA_ARGS__ static void narrow(void* to, const float* from, int64_t n, float divisor) {               \
      narrow_body<S>(to, from, n, divisor);                                                               \
    }                                                                                                     \
  };
// clang-format on

MCR_INSTRUCTIONS(Plain, [[gnu::flatten]])
#if defined(__x86_64__)
MCR_INSTRUCTIONS(Avx2, [[gnu::target("avx2"), gnu::flatten]])
MCR_INSTRUCTIONS(Avx512, [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl"), gnu::flatten]])
#endif
#undef MCR_INSTRUCTIONS

template <class I, class S>
Loops loops_for(RedOp red) {
  return visit_reduction<S>(red, []<class R>(R) -> Loops {
    if constexpr (Narrow<S>) {
      return {I::template pair<S, R>, I::template widen<S>, I::template fold<S, R>, I::template narrow<S>};
    } else {
      return {I::template pair<S, R>};
    }
  });
}

template <class I>
Loops loops_for(DType dtype, RedOp red) {
  return visit(dtype, [red]<class S>(S) { return loops_for<I, S>(red); });
}

Loops loops(DType dtype, RedOp red) {
#if defined(__x86_64__)
  static const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx512) return loops_for<Avx512>(dtype, red);
  if (avx2) return loops_for<Avx2>(dtype, red);
#endif
  return loops_for<Plain>(dtype, red);
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
