// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process, joined by a communicator that has nothing but send and receive: all else that a test
// does with it goes through the emulations.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/dispatch.h"

namespace ranks {

/// Runs `body` on `size` threads, each with a group of its own in which it is one of `size` ranks.
void together(int size, const std::function<void(mcr::Group&)>& body);

/// The same with two groups of the same ranks, each with messages of its own: for what needs a shadow group.
void together(int size, const std::function<void(mcr::Group&, const std::shared_ptr<mcr::Group>&)>& body);

/// Whether their communicators take device memory from now on.
void take_device_memory(bool take);

/// dispatch's two forms, for a call that may be a temporary and needs no extras.
int run(mcr::Group& group, mcr::Call call, mcr::Candidate* candidate = nullptr);
std::shared_ptr<mcr::Work> start(mcr::Group& group, mcr::Call call, mcr::Candidate* candidate = nullptr);

/// A communicator that has every operation and does nothing.
class Nothing : public mcr::Communicator {
 public:
  bool supports(const mcr::Call&) const override { return true; }
  void issue(const mcr::Call&, mcr::Lane&) override {}
};

/// A backend whose communicators a test makes.
class MadeBackend : public mcr::Backend {
 public:
  using Make = std::function<std::unique_ptr<mcr::Communicator>()>;
  explicit MadeBackend(Make make, bool moves_data = true) : make_(std::move(make)), moves_data_(moves_data) {}
  std::string library() const override { return "made by a test"; }
  std::unique_ptr<mcr::Communicator> connect(const mcr::GroupSpec&) override { return make_(); }
  bool moves_data() const override { return moves_data_; }

 private:
  const Make make_;
  const bool moves_data_;
};

/// A group of one process whose only backend makes `communicator`, for tests that need no second rank.
class Alone {
 public:
  using Make = MadeBackend::Make;
  explicit Alone(Make communicator, int size = 1, int rank = 0, const std::string& backend = "fake",
                 bool moves_data = true);
  mcr::Group& group() { return group_; }
  mcr::Registry::Entry& backend() { return entry_; }

 private:
  mcr::Registry::Entry entry_;
  mcr::Group group_;
};

/// The error that `body` throws: its code and text. Empty text if it throws none.
struct Failure {
  mcr::ErrorCode code{};
  std::string text;
};
Failure failure(const std::function<void()>& body);

mcr::GroupSpec spec(int size, int rank);

template <class T, class Allocator>
mcr::Buffer buffer(std::vector<T, Allocator>& values) {
  return {values.data(), static_cast<int64_t>(values.size())};
}

}  // namespace ranks
