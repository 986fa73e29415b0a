// SPDX-License-Identifier: Apache-2.0
// Collectives over two levels of links: the ranks of a line (one host) reach each other fast, the lines less so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "algorithms/schedule.h"

namespace mcr {

/// A group's ranks in lines, such as the ranks of each host. A value, equal on all ranks.
class Lines {
 public:
  /// The communicators that a hierarchy uses, as Task::part. Every schedule uses them in this order.
  enum Part : uint8_t {
    kFirst,  // of the rank's line
    kOuter,  // across the lines
    kLast,   // of the rank's line
  };
  static constexpr std::size_t kParts = 3;

  /// Throws InvalidArgument unless there are two lines or more, one of them with two ranks or more, and each of the
  /// ranks 0, 1, 2, ... is in one line.
  explicit Lines(std::vector<std::vector<int>> lines);

  const std::vector<std::vector<int>>& all() const { return lines_; }
  int size() const { return static_cast<int>(of_.size()); }
  /// All lines are equally long.
  bool even() const { return even_; }
  int line_of(int rank) const { return of_[static_cast<std::size_t>(rank)].line; }
  int index_of(int rank) const { return of_[static_cast<std::size_t>(rank)].index; }
  /// The ranks of a communicator, in its order. Across even lines: the ranks with the same index; across uneven lines:
  /// the first rank of each, and on the other ranks nothing.
  std::vector<int> members(int rank, Part part) const;

 private:
  struct Place {
    int line, index;
  };
  std::vector<std::vector<int>> lines_;
  std::vector<Place> of_;
  bool even_;
};

/// Whether hierarchy() has a form of the call. A function of the operation, type and reduction. Vectored calls,
/// messages, and reductions that cannot be done in steps (AVG, PREMUL_SUM) have none.
bool has_hierarchy(const Call& call);

/// Adds the tasks of a call for which has_hierarchy(): Issues on the communicators of Lines::Part, copies, and memory.
/// On even lines, large messages are split over the ranks of a line and pass in chunks; otherwise one rank of each line
/// communicates for all. Input and output must not overlap. All Issues on kOuter and kLast are late, so that one
/// executor can keep them in order. A function of the call, the rank and the lines.
void hierarchy(const Call& call, int rank, const Lines& lines, Schedule& schedule);

}  // namespace mcr
