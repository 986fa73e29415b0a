// SPDX-License-Identifier: Apache-2.0
// A module that cannot be loaded, for the registry's tests.
#include <stdexcept>

#include "plugin/backend.h"

namespace {

// The library's name selects what is thrown.
std::unique_ptr<mcr::Backend> create(const std::string& library) {
  if (library == "Error") throw mcr::Error(mcr::ErrorCode::Backend, "no library");
  if (library == "runtime_error") throw std::runtime_error("no library");
  throw 1;
}

}  // namespace

extern "C" const mcr::Plugin mcr_dl_plugin = {mcr::kPluginVersion, create};
