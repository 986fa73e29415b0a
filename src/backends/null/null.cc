// SPDX-License-Identifier: Apache-2.0
// A backend that does nothing and returns at once: what remains is the cost of everything around a backend.
#include "plugin/backend.h"

namespace mcr {

namespace {

class NullCommunicator : public Communicator {
 public:
  bool supports(const Call&) const override { return true; }
  void issue(const Call&, Lane&) override {}
};

class NullBackend : public Backend {
 public:
  std::string library() const override { return "does nothing, for measuring"; }
  bool moves_data() const override { return false; }
  std::unique_ptr<Communicator> connect(const GroupSpec&) override { return std::make_unique<NullCommunicator>(); }
};

std::unique_ptr<Backend> create(const std::string&) { return std::make_unique<NullBackend>(); }

}  // namespace

extern "C" const Plugin mcr_dl_plugin = {kPluginVersion, create};

}  // namespace mcr
