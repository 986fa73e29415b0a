// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "plugin/backend.h"
#include "runtime/registry.h"

namespace mcr {

/// The registry's backend of a candidate that consists of others; Group::adopt() gets its communicators.
class CompositeBackend final : public Backend {
 public:
  CompositeBackend(std::string text, bool moves_data) : text_(std::move(text)), moves_data_(moves_data) {}
  /// The entry with that name, which is made if there is none. `parts`: the names of its parts, which are loaded.
  static Registry::Entry& add(const std::string& name, std::span<const std::string> parts, const std::string& text);

  std::string library() const override { return text_; }
  bool moves_data() const override { return moves_data_; }
  std::unique_ptr<Communicator> connect(const GroupSpec&) override { return nullptr; }

 private:
  const std::string text_;
  const bool moves_data_;
};

}  // namespace mcr
