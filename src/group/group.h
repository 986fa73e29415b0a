// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "choose/select.h"
#include "observe/position.h"
#include "plugin/backend.h"
#include "runtime/registry.h"

namespace mcr {

struct CandidateName;
class Stage;
class Staging;

/// The error of a call on a group that is closed.
inline Error destroyed_group() { return {ErrorCode::NotInitialized, "the group has been destroyed"}; }

/// A set of ranks and its communicators, one per backend, with each backend's variants as candidates. Communicators are
/// made with the group, not on first use: making one is a collective, and a first use may be a send that only two ranks
/// take part in.
class Group : public std::enable_shared_from_this<Group> {
 public:
  explicit Group(GroupSpec spec);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() { position_->set_chain(nullptr); }  // the position may outlive the group

  /// While one exists, close() leaves the communicators alive: every thread that uses them without a copy is inside.
  class Inside {
   public:
    /// Throws NotInitialized if the group is closed.
    explicit Inside(Group& group);
    /// Takes over what Position::enter() or stay() has begun.
    Inside(Group& group, std::adopt_lock_t) noexcept : group_(group) {}
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() {
      if (group_.position_->leave()) [[unlikely]]
        group_.release();
    }

   private:
    Group& group_;
  };

  /// Makes the communicator of one more backend. Collective. Not concurrently with calls on this group. `existing` and
  /// `store` as in GroupSpec.
  void connect(Registry::Entry& backend, uintptr_t existing, Store* store = nullptr);
  /// Adds a communicator, such as one that consists of others. Under the rules of connect().
  void adopt(Registry::Entry& backend, std::unique_ptr<Communicator> made);
  /// Sets how communicators are destroyed from now on, by the thread that releases the last reference. Destruction may
  /// wait for a library's threads, so the bindings release the GIL meanwhile.
  static void destroy_with(void (*destroy)(std::unique_ptr<Communicator>));
  /// Removes one backend with its variants, or one variant.
  void disconnect(std::string_view name);
  /// Sets the measurements that `auto` uses, equal on all ranks; shares that they name become candidates of `auto`. Not
  /// concurrently with calls on this group.
  void tune(Tuning tuning);
  Selector& selector() { return selector_; }
  /// The candidate for a call that names none.
  Candidate& choose(const Call& call) { return candidates_.size() == 1 ? candidates_.front() : selector_.choose(call); }
  /// The same without the user's rules.
  Candidate& choose_unruled(const Call& call) {
    return candidates_.size() == 1 ? candidates_.front() : selector_.choose_unruled(call);
  }
  /// The candidate for a call of the program: as Selector::choose().
  Candidate* choose(const Call& call, int64_t bytes, Timing& timing) {
    if (candidates_.size() == 1) return &candidates_.front();
    timing.any_form = any_form();
    return selector_.choose(call, bytes, timing);
  }
  /// Sets the passes of all later calls, in order. Called at the same point in the order of calls on all ranks. Running
  /// and held calls keep the chain with which they entered.
  void set_passes(Chain passes) {
    position_->set_chain(passes.empty() ? nullptr : std::make_shared<const Chain>(std::move(passes)));
  }
  /// The chain of the next call; null if there are no passes.
  std::shared_ptr<const Chain> chain() const { return position_->chain(); }
  /// Sets where late Issues go, and the group used for that, which close() closes too. Once, under the rules of
  /// set_passes().
  void set_stage(std::shared_ptr<Stage> stage, std::shared_ptr<Group> group) {
    stage_ = std::move(stage);
    stage_group_ = std::move(group);
  }
  /// Null until a pass or a device needs it.
  const std::shared_ptr<Stage>& stage() const { return stage_; }
  /// Sets how tensors of devices reach libraries that take only host memory; null: they do not. As set_passes().
  void set_staging(std::shared_ptr<Staging> staging) { staging_ = std::move(staging); }
  Staging* staging() const { return staging_.get(); }
  /// Sets the timeout of later calls that give none. Not concurrently with calls on this group.
  void set_timeout(std::chrono::milliseconds timeout) { spec_.timeout = timeout; }
  /// Whether a call through torch.distributed may be blocking on some ranks and asynchronous on others. Set at the same
  /// point in the order of calls on all ranks.
  void set_any_form(bool any_form) noexcept { any_form_.store(any_form, std::memory_order_relaxed); }
  bool any_form() const noexcept { return any_form_.load(std::memory_order_relaxed); }
  /// Releases the communicators: each is freed when no thread is inside and its last running Work is complete. Later
  /// calls fail. From any thread.
  void close();

  /// The candidate with that name, in any spelling, or null; none once the group is closed. A striped backend has one
  /// for every share. From any thread, but not concurrently with connect(), disconnect() and tune().
  Candidate* find(std::string_view name);
  /// The candidates of `auto`.
  std::list<Candidate>& candidates() { return candidates_; }
  /// The names of its backends.
  std::vector<std::string> backends() const;
  /// The communicators that the group still has. From any thread, at any time.
  std::vector<std::shared_ptr<Communicator>> communicators();
  /// Ends waits that poll, and calls that the libraries can abort. From any thread.
  void give_up() noexcept;
  const GroupSpec& spec() const { return spec_; }
  /// The device of this process that the group uses, by kind.
  Device device(DeviceType type) const { return type == DeviceType::CPU ? Device{} : spec_.device; }
  int size() const { return spec_.size(); }
  int rank() const { return spec_.rank; }
  /// The group rank of a global rank, -1 if it is not a member.
  int group_rank(int global_rank) const;
  bool closed() const { return position_->closed(); }
  /// The backend that errors name if a call names none: the only one, or "auto".
  std::string_view any_backend() const {
    return only_backend() == nullptr ? std::string_view("auto") : *only_backend();
  }
  /// The name of the only backend, which lives as long as the process; null if there are several.
  const std::string* only_backend() const {
    const bool one = !candidates_.empty() && &candidates_.front().backend == &candidates_.back().backend;
    return one ? &candidates_.front().backend.name : nullptr;
  }
  Position& position() { return *position_; }
  const Position& position() const { return *position_; }
  /// "group 'default', rank 1 of 4". It lives as long as the process.
  const std::string& label() const { return position_->label(); }

 private:
  Candidate* compared(std::string_view name);
  Candidate* named(std::string_view name);
  Candidate* with_share(const CandidateName& candidate);
  void compare(const std::string& name);
  void release();

  GroupSpec spec_;
  bool identity_;  // group ranks are global ranks
  std::atomic<bool> any_form_{false};
  std::shared_ptr<Position> position_;
  std::mutex mutex_;
  std::list<Candidate>
      candidates_;  // changes under mutex_, which only communicators() needs. Closed candidates have no communicator
  std::list<Candidate> named_;  // guarded by mutex_: the other shares of striped backends that calls have named
  Selector selector_;
  std::shared_ptr<Staging> staging_;
  std::shared_ptr<Stage> stage_;
  std::shared_ptr<Group> stage_group_;
};

/// Gives a group the candidate "stripe(first,second)" over two of its backends. Under the rules of Group::connect().
/// Throws InvalidArgument if the group lacks one of them, or if one works on a device's streams.
void connect_striped(Group& group, const std::string& first, const std::string& second);

}  // namespace mcr
