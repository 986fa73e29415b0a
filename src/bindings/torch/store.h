// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "plugin/backend.h"

namespace mcr::python {

/// Adapts torch's store to the core's interface.
class TorchStore final : public Store {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key) override;
  void erase(const std::string& key) noexcept override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace mcr::python
