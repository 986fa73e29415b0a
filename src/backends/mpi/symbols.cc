// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/symbols.h"

#include <dlfcn.h>

#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace mcr::mpi {

namespace {

// Initialized before the symbols, which are objects of this library too.
constinit Symbol* last_symbol = nullptr;
constinit void* bound = nullptr;  // the library's handle

}  // namespace

Symbol::Symbol(const char* name) : name_(name), next_(std::exchange(last_symbol, this)) {}

void Symbol::bind(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error(ErrorCode::Unavailable, dlerror());
  if (library == bound) return;
  if (bound != nullptr) {
    throw Error(ErrorCode::Unavailable, path + ": this process already uses another MPI library with the same ABI");
  }
  std::vector<std::string_view> missing;
  for (Symbol* each = last_symbol; each != nullptr; each = each->next_) {
    each->address_ = dlsym(library, each->name_);
    if (each->address_ == nullptr) missing.emplace_back(each->name_);
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::Unavailable, path + ": expected an MPI library, got one without " + joined(missing));
  }
  bound = library;
}

void* Symbol::optional(const char* name) { return dlsym(bound, name); }

}  // namespace mcr::mpi
