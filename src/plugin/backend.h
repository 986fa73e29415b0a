// SPDX-License-Identifier: Apache-2.0
// The interface of a backend, and the entry point of its module. A backend contains no validation, no threads for
// issuing, no logging and no Python: it turns a Call on raw buffers into library calls.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/call.h"
#include "base/error.h"
#include "plugin/lane.h"

namespace mcr {

/// The meeting point of a group's ranks while a communicator is made. Its keys are private to this communicator.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits until some rank has set the key; throws Timeout, or Backend if the store is lost.
  virtual std::string get(const std::string& key) = 0;
  /// Deletes a key that no rank reads any more, if the store can.
  virtual void erase(const std::string& /*key*/) noexcept {}
};

struct GroupSpec {
  std::string name;        // equal on all members, unique among live groups
  std::vector<int> ranks;  // global ranks, in group order
  int rank = 0;            // this process's index in `ranks`
  std::chrono::milliseconds timeout{0};
  /// A communicator made elsewhere that this one uses, 0 if none: an MPI_Comm, or the address of a c10d::Backend. The
  /// caller keeps it alive during connect().
  uintptr_t existing = 0;
  Store* store = nullptr;  // only during connect()
  /// Throws if the group has lost a rank. Waits in connect() call it often. Null: they need not. Only during connect().
  const std::function<void()>* check = nullptr;
  Device device = {DeviceType::CUDA, 0};  // this rank's, for libraries whose communicators belong to a device

  int size() const { return static_cast<int>(ranks.size()); }
};

/// One per (group, backend). issue() may be called from any thread; calls on one communicator are issued in one order
/// on all ranks.
class Communicator {
 public:
  virtual ~Communicator() = default;
  /// A function of op, vectored, dtype, reduction, device, size hint and counts that all ranks know, so that all ranks
  /// get equal answers; the core caches them. For calls of less than 2^15 elements per buffer and hints below 2^31, the
  /// answer must not depend on counts and hints: the first such call's is used for all of them.
  virtual bool supports(const Call& call) const = 0;
  /// Does the call on a blocking lane, else starts it and tracks its requests. The buffers stay until the requests are
  /// complete; the call and what it points to only until issue() returns. May throw after it has tracked requests: the
  /// core keeps the buffers until these end. The call counts as one that has failed on this rank: the other ranks may
  /// have made it.
  virtual void issue(const Call& call, Lane& lane) = 0;
  /// Other ways to do these calls (algorithms, settings), each a candidate in addition to the library's own choice:
  /// `mpi` with a variant "p2p" gives the candidate "mpi:p2p". Call::variant is 1 + the index in this list.
  virtual std::span<const std::string_view> variants() const { return {}; }
  /// Whether this variant (1 + its index) does this call differently from the library's own choice. Equal on all ranks,
  /// like supports().
  virtual bool varies(const Call&, int /*variant*/) const { return false; }
  /// Whether blocking calls are also started and polled: issue() then never gets a blocking lane.
  virtual bool always_starts() const { return false; }
  /// Whether a blocking call matches a started one on other ranks, and keeps no other thread out of the library. False:
  /// blocking messages, which may depend on another thread's, and calls with Call::any_form are started and polled.
  virtual bool forms_match() const { return false; }
  /// Whether a blocking call keeps this process's other threads out of the library until it returns.
  virtual bool excludes_threads() const { return !forms_match(); }
  /// Whether issue() of this call needs nothing but the processor for a few microseconds at most, on any lane, even if
  /// other ranks are late; so do the polls of its Request (BriefPolls). The caller then keeps its own locks until it
  /// has to wait.
  virtual bool brief(const Call&) const { return false; }
  /// The largest tag of a message. The core refuses larger ones: issue() does not get them.
  virtual int largest_tag() const { return std::numeric_limits<int>::max(); }
  /// True for a library whose vectored forms take counts but no displacements: blocks must be contiguous.
  virtual bool packed() const { return false; }
  /// The kind of device on whose streams issue() enqueues; none for a host library. If set, only tensors of that kind
  /// reach issue(), and every lane is a stream.
  virtual std::optional<DeviceType> streams() const { return std::nullopt; }
  /// How many calls may run concurrently. Equal on all ranks.
  virtual int lanes() const { return 1; }
  /// The lanes in rotation, for calls that all ranks issue in one order.
  int next_lane() {
    return static_cast<int>(turns_.fetch_add(1, std::memory_order_relaxed) % static_cast<unsigned>(lanes()));
  }
  /// Whether calls on several communicators start on the device in the order in which the host issued them. If not, the
  /// core enforces it.
  virtual bool keeps_launch_order() const { return true; }
  /// How many times longer than usual the naps of the library's progress thread are: more where polls gain little, or
  /// take a core from a rank.
  virtual int patience() const { return streams() == DeviceType::CUDA ? 20 : 1; }
  /// Whether the library accepts this input inside this output, or the reverse, at these addresses. May differ between
  /// ranks: it only decides about a local copy.
  virtual bool takes_in_place(const Call&) const { return false; }
  /// Called around the issue() of several sends and receives that must not wait for each other.
  virtual void begin_batch() {}
  virtual void end_batch() {}
  /// Throws the library's error if it has detected that issued operations cannot complete. From any thread.
  virtual void check() {}
  /// Makes running operations fail soon. Callable from any thread; afterwards the communicator can only be destroyed.
  virtual void abort() noexcept {}
  /// Like abort(), and also ends waits that poll.
  void give_up() noexcept {
    given_up_.store(true, std::memory_order_relaxed);
    abort();
  }
  bool given_up() const noexcept { return given_up_.load(std::memory_order_relaxed); }
  /// The first of its streams among those of its backend. Set before any call.
  int first_stream() const noexcept { return first_stream_; }
  void set_first_stream(int index) noexcept { first_stream_ = index; }
  /// A word of the cache of decisions (choose/decision.h); 0 at first, and after forget_decisions().
  std::atomic<uint64_t>& remembered(std::size_t index) const noexcept { return decisions_[index % kRemembered]; }
  void forget_decisions() noexcept {
    for (auto& word : decisions_) word.store(0, std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t kRemembered = 16;
  mutable std::array<std::atomic<uint64_t>, kRemembered> decisions_{};
  std::atomic<unsigned> turns_{0};
  std::atomic<bool> given_up_{false};
  int first_stream_ = 0;
};

/// Routes issue() to the method with the op's name. The backend lacks an op if it has no such method.
template <class Derived>
class OpMethods : public Communicator {
 public:
  void issue(const Call& call, Lane& lane) final {
    auto& self = static_cast<Derived&>(*this);
    switch (call.op) {
#define X(name, ...)                                     \
  case Op::name:                                         \
    if constexpr (requires { self.name(call, lane); }) { \
      return self.name(call, lane);                      \
    }                                                    \
    break;
      MCR_OPS(X)
#undef X
    }
    throw Error(ErrorCode::Unsupported, std::string(row(call.op).name) + ": no native method");
  }

  static bool has(Op op) {
    switch (op) {
#define X(name, ...) \
  case Op::name:     \
    return requires(Derived& self, const Call& call, Lane& lane) { self.name(call, lane); };
      MCR_OPS(X)
#undef X
    }
    return false;
  }
};

class Backend {
 public:
  virtual ~Backend() = default;
  /// The library's name and version, for people: "MPICH 5.0.2".
  virtual std::string library() const = 0;
  /// Collective over the members of the group. Throws Error if the library fails, and what `spec.check` and the store
  /// throw: a wait in the store ends at the group's timeout, or when the group loses a rank.
  virtual std::unique_ptr<Communicator> connect(const GroupSpec& spec) = 0;
  /// Whether calls do what they say. A backend for measurements may not: calls use it only where they name it, or where
  /// their group has no other. Equal on all ranks.
  virtual bool moves_data() const { return true; }
  /// Ends the library if this backend started it. No call is issued afterwards.
  virtual void shutdown() {}
};

inline constexpr int kPluginVersion = 18;

/// The type of the symbol `mcr_dl_plugin` in a backend's module.
struct Plugin {
  int version;  // the kPluginVersion with which the module was compiled
  /// `library`: the library to use: its path, for a module that binds it at run time, its name, for an adapter of
  /// several, else empty.
  std::unique_ptr<Backend> (*create)(const std::string& library);
};

}  // namespace mcr
