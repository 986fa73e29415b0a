// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace mcr {

/// A vector that is nearly always empty: it is a null pointer until its first element.
template <class T>
class LazyVector {
 public:
  using Values = std::vector<T>;

  LazyVector() = default;
  LazyVector(Values values) : values_(std::make_unique<Values>(std::move(values))) {}  // NOLINT: implicit
  LazyVector(std::initializer_list<T> values) : LazyVector(Values(values)) {}
  LazyVector(LazyVector&&) noexcept = default;
  LazyVector& operator=(LazyVector&&) noexcept = default;
  ~LazyVector() {
    if (values_ != nullptr) [[unlikely]]
      clear();
  }

  bool empty() const { return values_ == nullptr || values_->empty(); }
  std::size_t size() const { return values_ == nullptr ? 0 : values_->size(); }
  T* begin() { return values_ == nullptr ? nullptr : values_->data(); }
  T* end() { return begin() + size(); }
  const T* begin() const { return values_ == nullptr ? nullptr : values_->data(); }
  const T* end() const { return begin() + size(); }
  auto rbegin() { return std::make_reverse_iterator(end()); }
  auto rend() { return std::make_reverse_iterator(begin()); }
  const T& front() const { return values_->front(); }

  template <class... Arguments>
  T& emplace_back(Arguments&&... arguments) {
    return made().emplace_back(std::forward<Arguments>(arguments)...);
  }
  void push_back(T value) { made().push_back(std::move(value)); }
  template <class From>
  void insert(const T* place, From first, From last) {
    const auto index = place - begin();
    made().insert(made().begin() + index, first, last);
  }
  [[gnu::noinline]] void clear() { values_.reset(); }
  /// Moves the elements out.
  Values take() { return values_ == nullptr ? Values{} : std::move(*std::exchange(values_, nullptr)); }

  operator const Values&() const {
    static const Values none;
    return values_ == nullptr ? none : *values_;
  }

 private:
  Values& made() {
    if (values_ == nullptr) values_ = std::make_unique<Values>();
    return *values_;
  }

  std::unique_ptr<Values> values_;
};

}  // namespace mcr
