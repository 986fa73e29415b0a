// SPDX-License-Identifier: Apache-2.0
// All ranks of a group in one process, without libraries and threads: what operations mean, and what schedules do.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "algorithms/schedule.h"
#include "base/call.h"

namespace interpreter {

/// The meaning of a collective: `calls[i]` is rank i's, all alike in what has to be equal. Reductions fold the inputs
/// in the order of the ranks.
void perform(const std::vector<mcr::Call>& calls);

/// Runs `schedules[i]` as rank i's. Tasks that are ready run in an order that `seed` decides; a message is taken from
/// the sender's memory when both sides are there, and a collective is performed at some time after all ranks have
/// issued it. Returns what went wrong, or "".
std::string run(std::span<mcr::Schedule> schedules, uint32_t seed);

/// The ranks of the communicator that a rank uses for a part, in its order.
using Members = std::function<std::vector<int>(int rank, uint8_t part)>;

/// As run(), for parts with communicators of their own, of some of the ranks. Issues of all parts start in the order in
/// which they were added, late ones among themselves, as by an executor with one stage.
std::string run(std::span<mcr::Schedule> schedules, uint32_t seed, const Members& members);

}  // namespace interpreter
