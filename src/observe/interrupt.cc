// SPDX-License-Identifier: Apache-2.0
#include "observe/interrupt.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <utility>
#include <vector>

#include "base/immortal.h"
#include "observe/activity.h"

namespace mcr {

namespace {

using std::chrono::steady_clock;

// The handlers that were found, oldest first. A handler installed after this one may call it as its predecessor; that
// call is forwarded to the next older handler in this list.
using Chain = std::vector<struct sigaction>;

std::atomic<int64_t> interrupted_at{0};
std::atomic<uint64_t> interrupted_turn{0};
// The handler may read it at any time: a published chain is never changed and never freed.
std::atomic<const Chain*> handlers{nullptr};
std::atomic<pthread_t> handling{};  // the thread inside on_interrupt, and the nesting depth
std::atomic<std::size_t> depth{0};

bool has_information(const struct sigaction& action) { return (action.sa_flags & SA_SIGINFO) != 0; }

bool same_handler(const struct sigaction& one, const struct sigaction& other) {
  if (has_information(one) != has_information(other)) return false;
  return has_information(one) ? one.sa_sigaction == other.sa_sigaction : one.sa_handler == other.sa_handler;
}

bool is_default(const struct sigaction& action) {
  return !has_information(action) && (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN);
}

void on_interrupt(int signal, siginfo_t* information, void* context) {
  interrupted_turn.store(Activity::turn_of_main(), std::memory_order_relaxed);
  interrupted_at.store(steady_clock::now().time_since_epoch().count(), std::memory_order_release);
  const auto& chain = *handlers.load(std::memory_order_acquire);
  const auto before = handling.load(std::memory_order_relaxed);
  const bool nested = before != pthread_t{} && pthread_equal(before, pthread_self()) != 0;
  const std::size_t level = nested ? depth.load(std::memory_order_relaxed) + 1 : 0;
  if (level >= chain.size()) return;
  const auto& action = chain[chain.size() - 1 - level];
  handling.store(pthread_self(), std::memory_order_relaxed);
  depth.store(level, std::memory_order_relaxed);
  if (has_information(action)) {
    action.sa_sigaction(signal, information, context);
  } else {
    action.sa_handler(signal);
  }
  if (nested) {
    depth.store(level - 1, std::memory_order_relaxed);
  } else {
    handling.store(pthread_t{}, std::memory_order_relaxed);
  }
}

// The handlers up to and including this one: a program that returns to an earlier handler has removed the later ones.
Chain extended(const struct sigaction& action) {
  const auto* before = handlers.load(std::memory_order_relaxed);
  Chain chain = before == nullptr ? Chain() : *before;
  chain.erase(std::find_if(chain.begin(), chain.end(), [&](const auto& known) { return same_handler(known, action); }),
              chain.end());
  chain.push_back(action);
  return chain;
}

// A permanent copy of the chain, for the handler: an earlier one is reused if the same handlers come back.
const Chain* published(Chain chain) {
  static auto& all = immortal<std::list<Chain>>();
  const auto equal = [&](const Chain& other) {
    return std::equal(chain.begin(), chain.end(), other.begin(), other.end(), same_handler);
  };
  const auto found = std::find_if(all.begin(), all.end(), equal);
  return found != all.end() ? &*found : &all.emplace_back(std::move(chain));
}

}  // namespace

void Interrupts::watch() {
  struct sigaction action{};
  if (sigaction(SIGINT, nullptr, &action) != 0 || is_default(action)) return;
  if (has_information(action) && action.sa_sigaction == on_interrupt) return;
  handlers.store(published(extended(action)), std::memory_order_release);
  action.sa_sigaction = on_interrupt;
  action.sa_flags |= SA_SIGINFO;
  sigaction(SIGINT, &action, nullptr);
}

std::optional<Interrupts::Latest> Interrupts::latest() noexcept {
  const auto at = interrupted_at.load(std::memory_order_acquire);
  if (at == 0) return std::nullopt;
  return Latest{steady_clock::now().time_since_epoch() - std::chrono::nanoseconds(at),
                interrupted_turn.load(std::memory_order_relaxed)};
}

}  // namespace mcr
