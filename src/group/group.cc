// SPDX-License-Identifier: Apache-2.0
#include "group/group.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "base/candidate_name.h"
#include "observe/activity.h"
#include "observe/stop.h"

namespace mcr {

namespace {

bool is_identity(const std::vector<int>& ranks) {
  for (int i = 0; std::cmp_less(i, ranks.size()); ++i) {
    if (ranks[static_cast<std::size_t>(i)] != i) return false;
  }
  return true;
}

Candidate* slot_in(std::list<Candidate>& candidates, std::string_view name) {
  const auto candidate = std::ranges::find_if(candidates, [&](const Candidate& one) { return one.name == name; });
  return candidate == candidates.end() ? nullptr : &*candidate;
}

std::atomic<void (*)(std::unique_ptr<Communicator>)> destroyer{nullptr};

std::shared_ptr<Communicator> shared(std::unique_ptr<Communicator> made) {
  return {made.release(), [](Communicator* last) {
            std::unique_ptr<Communicator> owned(last);
            if (auto* const destroy = destroyer.load()) destroy(std::move(owned));
          }};
}

}  // namespace

void Group::destroy_with(void (*destroy)(std::unique_ptr<Communicator>)) { destroyer = destroy; }

Group::Group(GroupSpec spec)
    : spec_(std::move(spec)),
      identity_(is_identity(spec_.ranks)),
      position_(Position::make(
          Registry::instance().keep_name(spec_.name),
          Registry::instance().keep_name("group '" + spec_.name + "', rank " + std::to_string(spec_.rank) + " of " +
                                         std::to_string(spec_.size())),
          spec_.ranks, spec_.rank)),
      selector_(spec_.size()) {}

void Group::connect(Registry::Entry& backend, uintptr_t existing, Store* store) {
  GroupSpec spec = spec_;
  spec.existing = existing;
  spec.store = store;
  const std::function<void()> check = [this] {
    Stop::check();
    if (const auto* lost = position_->lost()) throw Error(ErrorCode::PeerLost, *lost);
  };
  spec.check = &check;
  const Activity activity(
      {.label = &position_->label(), .backend = &backend.name, .limit = spec.timeout, .connects = true});
  auto communicator = backend.backend->connect(spec);
  if (communicator == nullptr)
    throw Error(ErrorCode::Unavailable, backend.name + ": connect() returned no communicator");
  adopt(backend, std::move(communicator));
}

void Group::adopt(Registry::Entry& backend, std::unique_ptr<Communicator> made) {
  const auto communicator = shared(std::move(made));
  const auto* striped = dynamic_cast<const StripedCommunicator*>(communicator.get());
  backend.progress.set_patience(communicator->patience());
  // Where the library keeps no launch order, the shared streams do, also within a graph.
  if (communicator->streams() && communicator->keeps_launch_order())
    communicator->set_first_stream(backend.streams.reserve(communicator->lanes()));
  std::list<Candidate> added;
  added.push_back({backend, communicator, backend.name, 0, communicator->streams(), striped});
  for (const auto variant : communicator->variants()) {
    const auto& name = Registry::instance().keep_name(variant_of(backend.name, variant));
    const auto number =
        striped == nullptr ? static_cast<uint8_t>(added.back().variant + 1) : striped->variant_with(variant);
    added.push_back({backend, communicator, name, number, communicator->streams(), striped});
  }
  {
    const std::lock_guard lock(mutex_);
    candidates_.splice(candidates_.end(), added);
  }
  tune(selector_.tuning());
}

void Group::disconnect(std::string_view name) {
  const auto known = canonical(name);
  const auto is_removed = [&](const Candidate& candidate) {
    return candidate.backend.name == known || candidate.name == known;
  };
  // Destroyed outside the lock, as a communicator's end may wait for other threads, and after tune(), as the choices
  // refer to them until then.
  std::list<Candidate> removed;
  {
    const std::lock_guard lock(mutex_);
    for (auto* candidates : {&named_, &candidates_}) {
      for (auto candidate = candidates->begin(); candidate != candidates->end();) {
        const auto next = std::next(candidate);
        if (is_removed(*candidate)) removed.splice(removed.end(), *candidates, candidate);
        candidate = next;
      }
    }
  }
  tune(selector_.tuning());
}

Group::Inside::Inside(Group& group) : group_(group) {
  if (!group.position_->stay()) throw destroyed_group();
}

void Group::close() {
  position_->close();
  if (const auto& trials = selector_.trials(); trials != nullptr) trials->close();
  if (stage_group_ != nullptr) stage_group_->close();
  release();
}

// The candidates stay: calls that close() ends still read their names.
void Group::release() {
  if (!position_->idle()) return;                       // the last call inside does it
  std::vector<std::shared_ptr<Communicator>> released;  // destroyed outside the lock
  const std::lock_guard lock(mutex_);
  for (auto* candidates : {&named_, &candidates_}) {
    for (auto& candidate : *candidates) released.push_back(std::move(candidate.communicator));
  }
}

std::vector<std::string> Group::backends() const {
  std::vector<std::string> names;
  for (const auto& candidate : candidates_) {
    if (candidate.variant == 0) names.push_back(candidate.backend.name);
  }
  return names;
}

std::vector<std::shared_ptr<Communicator>> Group::communicators() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Communicator>> found;
  for (const auto& candidate : candidates_) {
    if (candidate.communicator != nullptr) found.push_back(candidate.communicator);
  }
  return found;
}

void Group::give_up() noexcept {
  position_->give_up();
  for (const auto& communicator : communicators()) communicator->give_up();
}

void Group::tune(Tuning tuning) {
  if (!position_->stay()) return;  // a closed group makes no more choices
  const Inside inside(*this, std::adopt_lock);
  for (const auto& cost : tuning.costs) compare(cost.candidate);
  for (const auto& rule : tuning.rules) compare(rule.candidate);
  selector_.reset(candidates_, std::move(tuning));
}

// Makes a share that a table or a rule names a candidate of `auto`, next to those of its backend.
void Group::compare(const std::string& name) {
  const auto* candidate = compared(name) == nullptr ? find(name) : nullptr;
  if (candidate == nullptr || compared(candidate->name) != nullptr) return;
  const auto last = std::ranges::find_if(candidates_.rbegin(), candidates_.rend(),
                                         [&](const Candidate& other) { return &other.backend == &candidate->backend; });
  const std::lock_guard lock(mutex_);
  candidates_.insert(last.base(), *candidate);
}

Candidate* Group::find(std::string_view name) {
  if (closed()) return nullptr;
  if (auto* candidate = compared(name)) return candidate;
  if (auto* candidate = named(name)) return candidate;
  const auto candidate = CandidateName::read(name);  // calls that use the canonical spelling do not come here again
  if (!candidate) return nullptr;
  const auto known = candidate->text();
  if (auto* candidate = compared(known)) return candidate;
  if (auto* candidate = named(known)) return candidate;
  return with_share(*candidate);
}

Candidate* Group::compared(std::string_view name) { return slot_in(candidates_, name); }

Candidate* Group::named(std::string_view name) {
  const std::lock_guard lock(mutex_);
  return slot_in(named_, name);
}

Candidate* Group::with_share(const CandidateName& candidate) {
  if (candidate.variant.empty() || !candidate.codec.empty()) return nullptr;
  const auto* whole = compared(candidate.backend);
  if (whole == nullptr || whole->striped == nullptr) return nullptr;
  const auto& name = Registry::instance().keep_name(candidate.name());
  const std::lock_guard lock(mutex_);
  if (whole->communicator == nullptr) return nullptr;             // another thread has closed the group
  if (auto* candidate = slot_in(named_, name)) return candidate;  // another thread was faster
  const auto variant = StripedCommunicator::variant_with(candidate.variant);
  named_.push_back({whole->backend, whole->communicator, name, variant, whole->streams, whole->striped});
  return &named_.back();
}

int Group::group_rank(int global_rank) const {
  if (identity_) return global_rank >= 0 && global_rank < size() ? global_rank : -1;
  const auto found = std::find(spec_.ranks.begin(), spec_.ranks.end(), global_rank);
  return found == spec_.ranks.end() ? -1 : static_cast<int>(found - spec_.ranks.begin());
}

void connect_striped(Group& group, const std::string& first, const std::string& second) {
  const auto part = [&](const std::string& name) -> StripedCommunicator::Part {
    const auto* candidate = group.find(name);
    if (candidate == nullptr) {
      throw Error(ErrorCode::InvalidArgument,
                  "expected " + name + " among the backends of group '" + group.spec().name + "'");
    }
    if (candidate->streams) {
      throw Error(ErrorCode::InvalidArgument, "backend: " + stripe_of(first, second) +
                                                  ": expected two libraries of the host, got " + name +
                                                  ", which works on a device's streams");
    }
    return {name, candidate->communicator};
  };
  group.adopt(add_striped(first, second),
              std::make_unique<StripedCommunicator>(StripedCommunicator::Parts{part(first), part(second)}));
}

}  // namespace mcr
