// SPDX-License-Identifier: Apache-2.0
#include "engine/dimensions.h"

#include <algorithm>
#include <utility>

#include "base/candidate_name.h"
#include "base/pool.h"
#include "base/text.h"
#include "engine/dispatch.h"
#include "engine/stage.h"
#include "runtime/composite.h"

namespace mcr {

DimensionsCommunicator::DimensionsCommunicator(std::span<const Part> parts, const Dimensions& dimensions)
    : whole_(dimensions.whole),
      targets_(std::make_shared<Targets>(parts.size())),
      executor_(std::make_shared<Executor>(true, std::vector{&dimensions.entry.progress})) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [group, name] = parts[i];
    if (group == nullptr) continue;
    auto* candidate = group->find(name);
    if (candidate == nullptr || candidate->streams) {
      throw Error(ErrorCode::InvalidArgument,
                  "backend: expected a library of the host for each dimension, got " + name);
    }
    (*targets_)[i].group = group;
    (*targets_)[i].candidate.emplace(*candidate);
  }
}

bool DimensionsCommunicator::supports(const Call& call) const {
  if (call.device.type != DeviceType::CPU) return false;
  return call.vectored || !makes_steps(call.op) ? whole_->supports(call) : has_steps(call);
}

void DimensionsCommunicator::issue(const Call& call, Lane& lane) {
  if (!has_steps(call)) {
    Call own = call;
    own.variant = 0;
    return whole_->issue(own, lane);
  }
  const auto schedule = Schedule::make();
  add_steps(call, *schedule);
  // The schedule outlives the run that calls this.
  const Start start = [targets = targets_, memory = std::weak_ptr(schedule)](const Task& task, Requests& requests) {
    auto& target = (*targets)[task.part];
    requests.push_back(request_of(start_on(*target.group, target.candidate.value(), task.call, memory.lock())));
  };
  const auto run = make_pooled<Run>(schedule, start);
  lane.track(request_of(executor_, run));
  executor_->submit(run, start);
  executor_->drive();
}

int DimensionsCommunicator::patience() const {
  int most = whole_->patience();
  for (const auto& target : *targets_) {
    if (target.candidate) most = std::max(most, target.candidate->communicator->patience());
  }
  return most;
}

void DimensionsCommunicator::check() {
  for (const auto& target : *targets_) {
    if (target.candidate) target.candidate->communicator->check();
  }
}

void DimensionsCommunicator::abort() noexcept {
  for (const auto& target : *targets_) {
    if (target.candidate) target.candidate->communicator->give_up();
  }
}

Registry::Entry& add_over_dimensions(std::string_view algorithm, const std::vector<std::string>& parts) {
  return CompositeBackend::add(over_dimensions(algorithm, parts), parts,
                               "collectives in steps over " + joined(parts, {}, ", then "));
}

Dimensions dimensions_of(Group& group, const std::string& name) {
  auto* entry = Registry::instance().find(name);
  const auto outermost = CandidateName::parse(name).parts.back();
  const auto* whole = group.find(outermost);
  if (entry == nullptr || whole == nullptr) {
    throw Error(ErrorCode::InvalidArgument,
                "expected " + outermost + " among the backends of group '" + group.spec().name + "'");
  }
  return {*entry, whole->communicator};
}

}  // namespace mcr
