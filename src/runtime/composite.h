// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "plugin/backend.h"
#include "runtime/registry.h"

namespace mcr {

/// The registry's backend of a candidate that consists of others; Group::adopt() gets its communicators.
class CompositeBackend final : public Backend {
 public:
  CompositeBackend(std::string text, bool moves_data) : text_(std::move(text)), moves_data_(moves_data) {}
  /// The entry with that name, which is made if there is none. `moves_data`: whether all parts do, as far as the caller
  /// knows; equal on all ranks.
  static Registry::Entry& add(const std::string& name, const std::string& text, bool moves_data = true);
  bool moves_data() const { return moves_data_; }

  std::string library() const override { return text_; }
  std::unique_ptr<Communicator> connect(const GroupSpec&) override { return nullptr; }

 private:
  const std::string text_;
  const bool moves_data_;
};

}  // namespace mcr
