// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
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
  /// A program that has no iterations for so many calls is left alone for kRest calls, as looking takes time.
  static constexpr std::size_t kPatience = 16 * kLongest, kRest = 8 * kPatience;

  static constexpr std::size_t kTakenBack = 4;  // as several threads make calls

  /// Adds a call of a group. Returns the number of calls of an iteration, if it is known and this call begins one; else
  /// 0. Iterations begin where their signatures are the least of all rotations, so that they are found again where they
  /// were found before. `group`: of this process; the beginning does not depend on it.
  std::size_t add(uint64_t signature, uint64_t group);
  /// Takes back the last call that was added, which has not been made; at most kTakenBack in a row.
  void take_back();
  /// The next call begins an iteration, as the program says: from now on iterations begin only at such calls.
  void mark();
  /// How many kinds of calls are remembered: none once a program marks its iterations.
  std::size_t remembered() const { return newest_.size(); }
  /// Iterations of so many calls are found after so many repetitions.
  void demand(std::size_t calls, std::size_t repetitions) { demands_[calls] = repetitions; }
  void reset();

 private:
  /// How many calls in a row were equal to those a period before, and the last of them.
  struct Run {
    std::size_t last = 0;
    std::size_t calls = 0;
  };
  struct Seen {
    uint64_t signature;
    uint64_t key;        // of signature and group
    std::size_t before;  // the number of the call before with this key; kNone if there is none, or with marks
  };
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  // Where a program that marks its iterations is in them.
  struct Marks {
    bool marked = false;                  // before the next call
    std::size_t since = 0, interval = 0;  // calls since the last mark, and between the last two
  };
  // Before a call.
  struct Before {
    Marks marks;
    Run run;  // of marks.interval
  };

  Seen& seen(std::size_t number) { return seen_[number % seen_.size()]; }
  const Seen& seen(std::size_t number) const { return seen_[number % seen_.size()]; }
  std::size_t found();
  std::size_t marked();
  bool repeated(std::size_t period) const;
  bool primitive(std::size_t period) const;
  bool least_rotation(std::size_t period) const;

  std::size_t count_ = 0;                                     // calls since the last reset; they have numbers from 0
  std::vector<Seen> seen_ = std::vector<Seen>(2 * kLongest);  // the newest, by number
  std::unordered_map<uint64_t, std::size_t> newest_;          // by key: the number of the newest call; without marks
  std::vector<Run> runs_ = std::vector<Run>(kLongest + 1);    // by period
  bool marks_ = false;                                        // the program marks iterations
  Marks now_;
  std::array<Before, kTakenBack> before_;                 // with marks: the newest calls, by number
  std::unordered_map<std::size_t, std::size_t> demands_;  // by period: repetitions
};

}  // namespace mcr
