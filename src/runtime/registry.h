// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/immortal.h"
#include "device/stream_pool.h"
#include "plugin/backend.h"
#include "runtime/progress.h"

namespace mcr {

/// The backends of this process, by name. Modules are loaded on first use and never unloaded: threads and callbacks of
/// a communication library may outlive any point at which that would be safe. All methods are thread-safe.
class Registry {
 public:
  struct Entry {
    std::string name;
    std::unique_ptr<Backend> backend;  // null: `reason` says why it is missing
    Progress progress;
    StreamPool streams;
    std::string reason;
  };

  static Registry& instance();

  /// The backend with that name, loaded from the module at `path` if necessary. Throws Unavailable with the reason.
  /// `library`: for modules that bind it at run time.
  Entry& load(const std::string& name, const std::string& path, const std::string& library = {});
  /// Adds a backend that has no module.
  Entry& add(const std::string& name, std::unique_ptr<Backend> backend);
  /// The backend with that name, in any spelling, if it is loaded; else null.
  Entry* find(const std::string& name);
  /// A copy of the name that lives as long as the process: Works name their backend, and may outlive its group.
  const std::string& keep_name(const std::string& name);
  /// As keep_name(), for texts of the program, of which there may be ever more: null for a new one after kMostKeys.
  const std::string* keep_key(const std::string& key);
  static constexpr std::size_t kMostKeys = std::size_t{1} << 16;
  /// Records why a backend is unavailable.
  void missing(const std::string& name, const std::string& reason);
  /// name -> "ok: MPICH 5.0.2" or "unavailable: no CUDA device".
  std::map<std::string, std::string> status() const;
  /// Waits until the operations of these backends have ended, those that start meanwhile too; false if the time runs
  /// out first. `interrupt` is called now and then, and may throw.
  bool drain(const std::vector<std::string>& names, std::chrono::nanoseconds limit, Interrupt interrupt = nullptr);
  /// Operations that the progress threads of all backends watch, of those that are wanted (null: of all) at most `most`
  /// per backend. `wanted` must call neither this object nor a Progress.
  std::vector<std::shared_ptr<Work>> watched(std::size_t most, const std::function<bool(Work&)>& wanted = nullptr);
  /// Ends every library that this process started. No call may be issued afterwards.
  void shutdown();

 private:
  template <class T, class... Arguments>
  friend T& immortal(Arguments&&... arguments);
  Registry() = default;
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;  // entries never move
  std::set<std::string> names_;
  std::set<std::string> keys_;
};

}  // namespace mcr
