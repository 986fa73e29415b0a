// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "choose/select.h"
#include "observe/position.h"
#include "plugin/backend.h"
#include "runtime/registry.h"

namespace mcr {

class Pass;
class Staging;
using Chain = std::vector<std::shared_ptr<Pass>>;

/// A set of ranks and its communicators, one per backend, with the variants of each as candidates. Communicators are
/// made when the group is, not on first use: making one is a collective, and a first use may be a send that only two
/// ranks take part in.
class Group : public std::enable_shared_from_this<Group> {
 public:
  using Slot = mcr::Slot;

  explicit Group(GroupSpec spec);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Makes the communicator of one more backend. Collective. Not beside running calls of the same group. `foreign` and
  /// `store` as in GroupSpec.
  void connect(Registry::Entry& backend, uintptr_t foreign, Store* store = nullptr);
  /// How communicators are destroyed from now on, by whatever thread lets go of one last. The libraries' threads may be
  /// waited for there, so the bindings do not hold Python's lock meanwhile.
  static void destroy_with(void (*destroy)(std::unique_ptr<Communicator>));
  /// Gives up one backend with its variants, or one variant.
  void disconnect(std::string_view name);
  /// Takes what `auto` shall go by, equal on all ranks. Not beside running calls of the same group.
  void tune(Tuning tuning) { selector_.reset(slots_, std::move(tuning)); }
  Selector& selector() { return selector_; }
  /// The candidate of a call that names none.
  Slot& choose(const Call& call) { return slots_.size() == 1 ? slots_.front() : selector_.choose(call); }
  /// That of a call that is about to run to its end.
  Slot& choose(const Call& call, Stopwatch& watch) {
    return slots_.size() == 1 ? slots_.front() : selector_.choose(call, watch);
  }
  /// The stations of every call, the first one first. Set in the same place of the order of calls on all ranks, and not
  /// beside running calls of the group; a pass that is left out must hold no call any more.
  void set_passes(Chain passes) {
    chain_ = passes.empty() ? nullptr : std::make_shared<const Chain>(std::move(passes));
  }
  /// Null if there are no passes. A pass that keeps a Next for later keeps this too.
  const std::shared_ptr<const Chain>& chain() const { return chain_; }
  /// How tensors of devices reach libraries that take host memory alone, and the group on whose communicators their
  /// copies travel, which close() closes too; null: they do not. As set_passes().
  void set_staging(std::shared_ptr<Staging> staging, std::shared_ptr<Group> staging_group) {
    staging_ = std::move(staging);
    staging_group_ = std::move(staging_group);
  }
  Staging* staging() const { return staging_.get(); }
  /// How long later calls may take that do not say it themselves. Not beside calls of the group.
  void set_timeout(std::chrono::milliseconds timeout) { spec_.timeout = timeout; }
  /// Whether a call through torch.distributed may be blocking on some ranks and asynchronous on others. Set in the same
  /// place of the order of calls on all ranks.
  void set_any_form(bool any_form) noexcept { any_form_.store(any_form, std::memory_order_relaxed); }
  bool any_form() const noexcept { return any_form_.load(std::memory_order_relaxed); }
  /// Gives the communicators up: each is freed when its last running work is complete. Later calls fail.
  void close();

  /// The candidate of that name, or null.
  Slot* find(std::string_view name);
  std::list<Slot>& slots() { return slots_; }
  const GroupSpec& spec() const { return spec_; }
  /// This process's device of a kind, in the group.
  Device device(DeviceType type) const { return type == DeviceType::CPU ? Device{} : spec_.device; }
  int size() const { return spec_.size(); }
  int rank() const { return spec_.rank; }
  /// The place of a global rank in the group, -1 if it is not a member.
  int group_rank(int global_rank) const;
  bool closed() const { return closed_.load(std::memory_order_relaxed); }
  /// How errors name the backend of a call that names none: the only one, or "auto".
  std::string_view any_backend() const {
    return only_backend() == nullptr ? std::string_view("auto") : *only_backend();
  }
  /// The name of the only backend, which lives as long as the process; null if there are several.
  const std::string* only_backend() const {
    const bool one = !slots_.empty() && &slots_.front().backend == &slots_.back().backend;
    return one ? &slots_.front().backend.name : nullptr;
  }
  Position& position() { return *position_; }
  /// "group 'default', rank 1 of 4": shared with works that outlive the group.
  const std::shared_ptr<const std::string>& label() const { return label_; }

 private:
  std::unique_ptr<Communicator> striped(const std::array<std::string, 2>& names);

  GroupSpec spec_;
  bool identity_;  // group ranks are global ranks
  std::atomic<bool> closed_{false};
  std::atomic<bool> any_form_{false};
  std::shared_ptr<const std::string> label_;
  std::shared_ptr<Position> position_;
  std::list<Slot> slots_;
  Selector selector_;
  std::shared_ptr<const Chain> chain_;
  std::shared_ptr<Staging> staging_;
  std::shared_ptr<Group> staging_group_;
};

}  // namespace mcr
