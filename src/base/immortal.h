// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace mcr {

/// Makes an object that is never destroyed: threads, and destructors of other objects, may use it until the process has
/// ended. Classes whose constructor is private have it as a friend.
template <class T, class... Arguments>
T& immortal(Arguments&&... arguments) {
  return *new T(std::forward<Arguments>(arguments)...);
}

}  // namespace mcr
