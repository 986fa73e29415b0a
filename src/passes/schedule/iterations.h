// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mcr {

/// Finds the iterations of a program: the shortest sequence of calls that repeats itself. A function of the calls'
/// signatures, so that ranks which make the same calls find the same iterations at the same call. Not thread-safe.
class IterationFinder {
 public:
  static constexpr std::size_t kLongest = 2048;   // calls of an iteration
  static constexpr std::size_t kRepetitions = 6;  // iterations that must be equal
  static constexpr std::size_t kLeast = 32;       // calls that must repeat themselves, so that equal calls within an
                                                  // iteration are not taken for iterations

  /// Adds a call of a group. Returns the number of calls of an iteration, if it is known and this call begins one; else
  /// 0. Iterations begin where their signatures are the least of all rotations, so that they are found again where they
  /// were found before. `group`: of this process; the begin does not depend on it.
  std::size_t add(uint64_t signature, uint64_t group);
  /// The next call begins an iteration, as the program says: from now on iterations begin only at such calls.
  void mark();
  void reset();

 private:
  std::size_t found() const;
  std::size_t marked();
  bool least_rotation(std::size_t period) const;

  std::vector<uint64_t> signatures_, groups_;  // the newest 2 kLongest at most, oldest first
  bool marks_ = false, marked_ = false;        // the program marks iterations; before the next call
  std::size_t since_mark_ = 0;                 // calls
  std::vector<uint32_t> runs_ = std::vector<uint32_t>(kLongest + 1);  // by period: calls equal to those a period before
};

}  // namespace mcr
