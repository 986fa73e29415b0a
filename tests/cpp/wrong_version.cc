// SPDX-License-Identifier: Apache-2.0
// A module from another time, for the registry's tests.
#include "plugin/backend.h"

extern "C" const mcr::Plugin mcr_dl_plugin = {mcr::kPluginVersion + 1, nullptr};
