// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/store.h"

#include <pybind11/pybind11.h>

#include <exception>
#include <vector>

#include "bindings/python/errors.h"
#include "bindings/python/gil.h"

namespace mcr::python {

namespace {

template <class Action>
auto guarded(Action action) {
  try {
    return action();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const bool late = text.find("imeout") != std::string::npos || text.find("imed out") != std::string::npos;
    if (late) throw Error(ErrorCode::Timeout, "store: timed out after a timeout of the store: " + text);
    throw Error(ErrorCode::Backend, "store: " + text);
  }
}

}  // namespace

void TorchStore::set(const std::string& key, const std::string& value) {
  guarded([&] { store_->set(key, std::vector<uint8_t>(value.begin(), value.end())); });
}

std::string TorchStore::get(const std::string& key) {
  return guarded([&] {
    const auto value = store_->get(key);
    return std::string(value.begin(), value.end());
  });
}

void TorchStore::erase(const std::string& key) noexcept {
  try {
    store_->deleteKey(key);
  } catch (const pybind11::error_already_set& error) {  // of a store in Python
    const Locked locked;
    keep_interrupt(error.type().ptr());
  } catch (const std::exception&) {  // some stores cannot
  }
}

}  // namespace mcr::python
