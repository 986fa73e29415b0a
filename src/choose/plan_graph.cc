// SPDX-License-Identifier: Apache-2.0
#include "choose/plan_graph.h"

#include <string>

#include "choose/cost_model.h"
#include "choose/refuse.h"

namespace mcr {

namespace {

constexpr std::size_t kMostMotifs = std::size_t{1} << 20;  // in all options together

constexpr Refusal refuse("plan");

void check_option(const PlanOption& option, std::size_t channels, const std::string& name) {
  if (option.empty()) refuse(name + ": expected at least one motif in each option");
  for (std::size_t index = 0; index < option.size(); ++index) {
    const auto& motif = option[index];
    if (motif.channel >= channels) {
      refuse(name + ": expected one of " + std::to_string(channels) + " channels, got number " +
             std::to_string(motif.channel));
    }
    if (motif.time < 0 || motif.time > kMostCost) {
      refuse(name + ": expected a time of 0 to 2^40 ns, got " + std::to_string(motif.time));
    }
    for (const auto before : motif.after) {
      if (before >= index) refuse(name + ": expected motifs after earlier ones of their option");
    }
  }
}

}  // namespace

void PlanGraph::check() const {
  if (channels.empty() || channels.size() > 64) refuse("expected 1 to 64 channels");
  for (const auto mask : channels) {
    if (mask == 0) refuse("expected at least one resource of each channel");
  }
  std::size_t motifs = 0;
  for (std::size_t index = 0; index < nodes.size(); ++index) {
    const auto& node = nodes[index];
    const std::string name = "'" + node.name + "'";
    for (const auto& [before, back] : node.after) {
      if (back > 1 || before >= nodes.size() || (back == 0 && before >= index)) {
        refuse(name + ": expected to be after an earlier node, or after any node of the previous iteration");
      }
    }
    if (node.options.empty()) refuse(name + ": expected at least one option");
    for (const auto& option : node.options) {
      check_option(option, channels.size(), name);
      motifs += option.size();
    }
  }
  if (motifs > kMostMotifs) refuse("expected at most 2^20 motifs, got " + std::to_string(motifs));
}

}  // namespace mcr
