// SPDX-License-Identifier: Apache-2.0
// Calls as several smaller ones, the motifs (SYNDICATE, NSDI'23, section 4.2.1). mcr_dl/planner/motifs.py has their
// algebra, by which plans choose among these forms.
#pragma once

#include <cstdint>
#include <string_view>

#include "algorithms/schedule.h"

namespace mcr {

/// A way to do one call by motifs. Equal on all ranks.
struct MotifForm {
  enum class Kind : uint8_t {
    Whole,    // the call itself
    Segment,  // `parts` calls of a part of the payload each
    Ring,     // all_reduce = reduce_scatter, then all_gather; of each of `parts` segments
    Tree,     // all_reduce by messages, in groups of `parts` ranks: to one of them, level by level, and back
    Spline,   // all_to_all in windows: in each, every rank sends to `parts` ranks
  };
  static constexpr int kMost = 64;  // motifs of a call

  Kind kind = Kind::Whole;
  int32_t parts = 1;

  /// From "whole", "segment K", "ring", "segment K, ring", "tree N", "spline N". Throws InvalidArgument.
  static MotifForm parse(std::string_view text);
};

/// Whether a call has other forms than itself. A function of values that are equal on all ranks.
bool has_motifs(const Call& call);

/// The number of motifs; 0 if the call has no such form. A function of values that are equal on all ranks.
int motif_count(const MotifForm& form, const Call& call, int size);

/// Adds the tasks of a call in this form. Task::part of an Issue is the index of its motif. All Issues are late, so
/// that an executor decides when each motif is issued. A motif of a tree has several messages on some ranks, and none
/// on others; every other motif is one call. Throws InvalidArgument if the call has no such form, or if it has more
/// than kMost motifs.
void motifs(const Call& call, int rank, int size, const MotifForm& form, Schedule& schedule);

}  // namespace mcr
