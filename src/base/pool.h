// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "base/immortal.h"

namespace mcr {

/// Memory for objects of one type that are made and destroyed often: freed memory serves the next object. The pool
/// holds at most kKept free pieces. Thread-safe.
template <class T>
struct PoolAllocator {
  using value_type = T;

  PoolAllocator() = default;
  template <class Other>
  PoolAllocator(const PoolAllocator<Other>&) noexcept {}  // NOLINT: allocators convert implicitly

  T* allocate(std::size_t count) {
    if (count == 1) {
      auto& pool = idle();
      const std::lock_guard lock(pool.mutex);
      if (pool.size != 0) return static_cast<T*>(pool.pieces[--pool.size]);
    }
    return std::allocator<T>().allocate(count);
  }
  void deallocate(T* piece, std::size_t count) noexcept {
    if (count == 1) {
      auto& pool = idle();
      const std::lock_guard lock(pool.mutex);
      if (pool.size != kKept) {
        pool.pieces[pool.size++] = piece;
        return;
      }
    }
    std::allocator<T>().deallocate(piece, count);
  }
  bool operator==(const PoolAllocator&) const = default;

 private:
  static constexpr std::size_t kKept = 64;
  struct Idle {
    std::mutex mutex;
    std::array<void*, kKept> pieces;  // guarded by mutex
    std::size_t size = 0;             // guarded by mutex
  };
  // Never destroyed: operations may still end during process exit.
  static Idle& idle() {
    static auto& made = immortal<Idle>();
    return made;
  }
};

/// std::make_shared with memory from a pool.
template <class T, class... Arguments>
std::shared_ptr<T> make_pooled(Arguments&&... arguments) {
  return std::allocate_shared<T>(PoolAllocator<T>(), std::forward<Arguments>(arguments)...);
}

/// Gives the objects of a final class that `new` makes memory from a pool: `class T final : public Base, Pooled<T>`.
template <class T>
struct Pooled {
  static void* operator new(std::size_t) { return PoolAllocator<T>().allocate(1); }
  static void operator delete(void* piece) noexcept { PoolAllocator<T>().deallocate(static_cast<T*>(piece), 1); }
};

}  // namespace mcr
