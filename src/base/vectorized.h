// SPDX-License-Identifier: Apache-2.0
// Loops for the vector instructions of whatever processor runs them, from one build for all processors.
#pragma once

namespace mcr {

namespace instruction_sets {

template <auto loop, class... Values>
[[gnu::flatten]] void baseline(Values... values) {
  loop(values...);
}

#if defined(__x86_64__)

template <auto loop, class... Values>
[[gnu::target("avx2"), gnu::flatten]] void avx2(Values... values) {
  loop(values...);
}

template <auto loop, class... Values>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl"), gnu::flatten]] void avx512(Values... values) {
  loop(values...);
}

inline bool has_avx2() {
  static const bool found = __builtin_cpu_supports("avx2");
  return found;
}

inline bool has_avx512() {
  static const bool found = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return found;
}

#endif

}  // namespace instruction_sets

/// As vectorized(), on instruction sets that cannot multiply and add in one rounding: GCC 12 does so in products of
/// complex numbers, even without contraction.
template <auto loop, class... Values>
void vectorized_unfused(Values... values) {
#if defined(__x86_64__)
  if (instruction_sets::has_avx2()) return instruction_sets::avx2<loop>(values...);
#endif
  instruction_sets::baseline<loop>(values...);
}

/// Calls the function `loop`, which is compiled for each instruction set with all that it calls inlined, so no function
/// of another set can be called by mistake. All sets give the same bits, as the files that use this are compiled
/// without contraction of floating-point operations (CMakeLists.txt).
template <auto loop, class... Values>
void vectorized(Values... values) {
#if defined(__x86_64__)
  if (instruction_sets::has_avx512()) return instruction_sets::avx512<loop>(values...);
#endif
  vectorized_unfused<loop>(values...);
}

}  // namespace mcr
