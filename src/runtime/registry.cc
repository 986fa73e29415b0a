// SPDX-License-Identifier: Apache-2.0
#include "runtime/registry.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>

#include "base/candidate_name.h"

namespace mcr {

namespace {

// A module of another package may throw anything.
std::unique_ptr<Backend> create_by(const Plugin& plugin, const std::string& library) {
  try {
    return plugin.create(library);
  } catch (const Error&) {
    throw;
  } catch (...) {
    throw Error(ErrorCode::Unavailable, std::string("create() threw: ") + current_error().what());
  }
}

std::unique_ptr<Backend> create_from(const std::string& path, const std::string& library) {
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) throw Error(ErrorCode::Unavailable, dlerror());
  const auto* plugin = static_cast<const Plugin*>(dlsym(module, "mcr_dl_plugin"));
  if (plugin == nullptr) throw Error(ErrorCode::Unavailable, path + " has no symbol mcr_dl_plugin");
  if (plugin->version != kPluginVersion) {
    throw Error(ErrorCode::Unavailable, path + ": expected plugin version " + std::to_string(kPluginVersion) +
                                            ", got " + std::to_string(plugin->version) + "; rebuild the backend");
  }
  auto made = create_by(*plugin, library);
  if (made == nullptr) throw Error(ErrorCode::Unavailable, path + ": create() returned no backend");
  return made;
}

}  // namespace

Registry& Registry::instance() {
  static auto& registry = immortal<Registry>();
  return registry;
}

Registry::Entry& Registry::load(const std::string& name, const std::string& path, const std::string& library) {
  std::lock_guard lock(mutex_);
  const auto known = canonical(name);
  auto& entry = entries_[known];
  entry.name = known;
  if (entry.backend) return entry;
  try {
    entry.backend = create_from(path, library);
  } catch (const Error& error) {
    entry.reason = error.what();
    throw Error(ErrorCode::Unavailable, "backend '" + name + "' is unavailable: " + entry.reason);
  }
  return entry;
}

Registry::Entry& Registry::add(const std::string& name, std::unique_ptr<Backend> backend) {
  std::lock_guard lock(mutex_);
  auto& entry = entries_[name];
  entry.name = name;
  entry.backend = std::move(backend);
  return entry;
}

const std::string& Registry::keep_name(const std::string& name) {
  std::lock_guard lock(mutex_);
  return *names_.insert(name).first;
}

const std::string* Registry::keep_key(const std::string& key) {
  std::lock_guard lock(mutex_);
  const auto found = keys_.find(key);
  if (found != keys_.end()) return &*found;
  return keys_.size() < kMostKeys ? &*keys_.insert(key).first : nullptr;
}

void Registry::missing(const std::string& name, const std::string& reason) {
  std::lock_guard lock(mutex_);
  auto& entry = entries_[name];
  entry.name = name;
  entry.reason = reason;
}

std::map<std::string, std::string> Registry::status() const {
  std::lock_guard lock(mutex_);
  std::map<std::string, std::string> result;
  for (const auto& [name, entry] : entries_) {
    result[name] = entry.backend ? "ok: " + entry.backend->library() : "unavailable: " + entry.reason;
  }
  return result;
}

bool Registry::drain(const std::vector<std::string>& names, std::chrono::nanoseconds limit, Interrupt interrupt) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  bool drained = true;
  for (const auto& name : names) {
    auto* entry = find(name);
    if (entry == nullptr) continue;
    const auto left = deadline - std::chrono::steady_clock::now();
    drained = entry->progress.drain(std::max(left, std::chrono::nanoseconds::zero()), interrupt) && drained;
  }
  return drained;
}

std::vector<std::shared_ptr<Work>> Registry::watched(std::size_t most, const std::function<bool(Work&)>& wanted) {
  std::vector<std::shared_ptr<Work>> works;
  std::lock_guard lock(mutex_);
  for (auto& [name, entry] : entries_) {
    for (auto& work : entry.progress.watched(most, wanted)) works.push_back(std::move(work));
  }
  return works;
}

Registry::Entry* Registry::find(const std::string& name) {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(name);
  if (found == entries_.end()) found = entries_.find(canonical(name));
  return found == entries_.end() || !found->second.backend ? nullptr : &found->second;
}

// Stops the threads outside the lock, which the steps of passes that run there may need; all of them first, since those
// of composites poll other entries' libraries.
void Registry::shutdown() {
  std::vector<Entry*> loaded;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [name, entry] : entries_) {
      if (entry.backend) loaded.push_back(&entry);
    }
  }
  for (auto* const entry : loaded) entry->progress.stop();
  for (auto* const entry : loaded) entry->backend->shutdown();
}

}  // namespace mcr
